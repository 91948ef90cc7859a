"""The HTTP listener: metrics, health, and the page for browsers (MON-23 to MON-59).

`listener.py` accepts connections, `guard.py` lets requests through, `identity.py` knows who sends
them. `metrics.py`, `health.py` and `page/` answer; each has a function `routes` that lists its
paths. They read through `reads.py`, with the rights of the caller.
"""
