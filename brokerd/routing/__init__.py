"""Routing, pure: the choice of the broker or network address for a message (chapter RTE).

In the order of a decision: `classify.py` decides about a dialog or an arrival. `table.py` finds the
routes that match the service name and broker, `choice.py` chooses one of them (with the turns of
the balancer), and `classify.py` locates the target: a broker of this instance, or an address in the
normal form of `address.py`. During a classification, `mirror.py` returns which of two mirrored
addresses has the principal, and `duplicates.py` the brokers that exist twice and to which nothing
may be sent.

A decision without a target has a key of `reasons.py`. For `route explain` the three deciding
modules write their findings into `notes.py`, and `explain.py` formats them.
"""
