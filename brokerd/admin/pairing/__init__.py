"""Pairing two instances by a code that is shown once (SEC-60 to SEC-63).

`pairing.py` has the verbs of administration: show a code, wait for its use, cancel it, join.
`visits.py` is the side that has shown the code, on an accepted connection; `joining.py` the side
that was given it. Both describe this instance by `acquaintance.py`, and install what they need of
the other by `introductions.py`, which also undoes it; `objects.py` says which routes and bindings
that takes.
"""
