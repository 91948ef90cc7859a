"""`brokerd monitor`: the queue monitors, which start readers by load (VIEW-6)."""

from brokerd.cli.view_commands import Choice, Shown, listing, noun, since, until

command = noun(
    "monitor",
    "Queue monitors: why readers are started or not.",
    listing(
        "queue_monitors",
        "List the queue monitors of the whole instance; `queue ls` says why a queue has none.",
        Shown("broker_name", "broker"),
        Shown("queue_id", "queue"),
        Shown("state", "state"),
        Shown("necessary", "necessary"),
        Shown("tasks_running", "running"),
        Shown("tasks_waiting", "waiting"),
        Shown("last_activated_time", "activated", since),
        Shown("last_empty_rowset_time", "empty", since),
        Shown("backoff_until", "backs off for", until),
        Shown("consecutive_failures", "failures"),
        Shown("last_failure", "last failure"),
        Shown("absent_reason", "shut down because"),
        choices=(
            Choice("of-broker", "broker_name", "Only monitors of this broker."),
            Choice("queue", "queue_id", "Only the monitor of this queue."),
        ),
    ),
)
