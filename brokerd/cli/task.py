"""`brokerd task`: the running readers that activation has started (VIEW-7)."""

from brokerd.cli.view_commands import Choice, Shown, listing, noun, since

command = noun(
    "task",
    "Running readers that activation has started.",
    listing(
        "activated_tasks",
        "List the readers of the whole instance.",
        Shown("spid", "session"),
        Shown("broker_name", "broker"),
        Shown("queue_id", "queue"),
        Shown("procedure_name", "handler"),
        Shown("started_at", "running for", since),
        Shown("receives", "receives"),
        Shown("last_receive_at", "last receive", since),
        Shown("pid", "pid"),
        choices=(
            Choice("of-broker", "broker_name", "Only readers of this broker."),
            Choice("queue", "queue_id", "Only readers of this queue."),
        ),
    ),
)
