"""`brokerd periodic`: the periodic work of the daemon, and its failures (VIEW-13, PBT-17)."""

from brokerd.cli.view_commands import Shown, listing, noun, since, took

command = noun(
    "periodic",
    "Periodic work of the daemon.",
    listing(
        "periodic_tasks",
        "List the passes: their period in ticks, their last run, and their last error.",
        Shown("task", "task"),
        Shown("period", "ticks"),
        Shown("last_start", "last start", since),
        Shown("last_duration", "took", took),
        Shown("runs", "runs"),
        Shown("skips", "skips"),
        Shown("done_total", "done"),
        Shown("last_error", "last error"),
    ),
)
