"""Mutation testing: small mistakes planted in a module, one at a time, to see which a test notices.

    python -m tools.mutation brokerd/broker/queues.py --tests tests/unit/broker --sample 20

`operators` makes the mistakes, `trials` runs the tests against them in a copy of the sources, and
`timing` is loaded into these runs to learn how long each test takes.
"""
