"""Creating, altering and dropping objects on a running instance: plan, check, apply.

In the order of an apply: `merge.py` joins a declaration with the objects of the broker, if
nothing is to be dropped; `plan.py` computes all changes once, as one value, which a dry run
reports; `check.py` reads a broker's objects, and raises the error that forbids a plan; `apply.py`
makes the changes in one commit per broker. It calls `terminate.py` to end dialogs that need a
dropped object, and `rebind.py` to move a service with its messages to another queue.
`administration.py` calls these steps, for one object as for a whole file, one request at a time.

`attach.py` is separate: it checks whether a store that is opened belongs to this instance.
"""
