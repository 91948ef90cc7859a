"""The demonstration: two daemons, a client and workers, kills in between, and a verdict.

In reading order; each module calls those below it:

    run              the demonstration itself: starts, kills, waits, checks
    place            the directory with settings and objects of both daemons
    daemon           one daemon: a process that is started, watched and killed
    client           many dialogs at once, over a session that may lose its daemon
    dialogs          the messages of each dialog, and the correct replies
    workers          the handlers at the far daemon; `running_sha256`: their state
    result           figures and verdict, as text and JSON

Only `run` knows of kills: the client and the workers are ordinary programs of the SDK.
"""
