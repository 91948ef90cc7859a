"""Routing, pure: which broker or which network address a message goes to (chapter RTE).

In the order of a decision: `classify.py` decides about a dialog or an arrival. It asks `table.py`
which routes match the service name and broker, `choice.py` which of several is used (with the turns
of the balancer), and locates the target: a broker here, or an address in the normal form of
`address.py`. `mirror.py` knows which of two mirrored addresses has the principal, `duplicates.py`
which broker exists twice and is not to be sent to; both are asked during a classification.

A decision that leads nowhere has a key of `reasons.py`. For `route explain` the three deciding
modules write their findings into `notes.py`, and `explain.py` formats them.
"""
