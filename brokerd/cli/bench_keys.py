"""The meaning of the keys of a benchmark's result, as a block at the end of each command's help.

Called: by `cli.bench`, when it is imported.
Never:  leaves out a key: tests compare results with the help.
"""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final, TypeVar

_WIDTH: Final = 76
"""Width of the block: click indents by two columns, and wraps for terminals of 80 columns."""
_LONG: Final = 30
"""Largest number of characters of a key whose meaning begins on the line of the key."""
_MICROSECONDS: Final = "All in _us are microseconds."
_PERCENTILES: Final = (
    "Times of many are told by p50, p95, p99 and p999, which are exact to within 2 %, and most."
)

_Rows = tuple[tuple[str, str], ...]


def _phase(name: str, what: str, latency: str) -> _Rows:
    return (
        (name, f"{what}:"),
        ("  messages, seconds", "that were counted"),
        ("  rate", "messages a second"),
        ("  latency_us", latency),
    )


_DAEMONS: Final[_Rows] = (
    ("processor_us_per_message", "processor time of each daemon, in the counted time"),
    ("counters", "of each daemon, in the counted time:"),
    ("  sends, receives", "messages sent; receives, each of one conversation group"),
    ("  rollbacks", "of transactions"),
    ("  flushes, changesets", "flushes of the store, one sync each; what they put together"),
    ("  fragments_received", "messages, or pieces of large ones, from another daemon"),
    ("  fragments_stored", "of these, written"),
    ("  fragments_duplicate", "of these, there already"),
    ("  fragments_buffered", "of these, come before their turn"),
    ("  retransmitted", "fragments sent again"),
    ("  acks_sent, acks_carried", "acknowledgements alone; with a message of the other way"),
    ("peak_memory_bytes", "the most that one daemon has had since its start"),
)

KEYS: Final[dict[str, _Rows]] = {
    "local": (
        *_phase("send", "the sends", "of a send, until it is confirmed"),
        ("  flushes", "of the store in the counted time, one sync each"),
        ("  syncs_per_message", "flushes by messages"),
        ("receive", "the same of what waited, but in place of latency_us:"),
        ("  since_sent_us", "from the send to the committed receive: the backlog's age"),
        ("peak_memory_bytes", "the most that the daemon has had since its start"),
    ),
    "peer": (
        *_phase("send", "sends at east", "of a send, until it is confirmed"),
        *_phase(
            "end_to_end", "messages received at west", "from the send to the committed receive"
        ),
        *_DAEMONS,
        ("direct, forwarder", "with --compare: all of this without and with a forwarder"),
        ("rate_ratio", "with --compare: rate end to end with one, by that without"),
    ),
    "stages": (
        *_phase(
            "end_to_end",
            "messages received",
            "time that passes, from the send to the committed receive",
        ),
        ("client_us_per_message", "processor time of send, and of receive with its commit"),
        ("daemons", "of each, processor time for one message of its whole way:"),
        ("  processor_us_per_message", "all of it, which is the sum of"),
        ("  loop_us", "the loop's thread,"),
        ("  writer_us", "the thread that writes, and"),
        ("  other_threads_us", "all others"),
        ("  stages_us, modules_us", "that of the loop by stage, and its busiest modules"),
        ("  kernel_us", "the part of the daemon's that is the kernel's"),
        ("  loop_percent", "how much of a processor the loop's thread used"),
        ("  flush_times", "time that passes, of one flush; all flushes of the run:"),
        ("    messages", "it carried, the mean"),
        ("    hops_us", "from the loop to the writer and back, the mean"),
        (
            "    hops_p50_us, hops_p95_us, hops_p99_us, hops_p999_us, hops_most_us",
            "percentiles of the same, and the longest",
        ),
        ("    build_us, commit_us", "its statements; the COMMIT with its sync: means"),
    ),
    "backlog": (
        ("fill_rate, drain_rate", "messages a second"),
        ("empty, few, many, drained", "with none, 1,000, all waiting, and with none again:"),
        ("  messages", "that wait"),
        ("  memory_bytes", "of the daemon"),
        ("  store_bytes", "of its store's files"),
        (
            "  receive_us",
            "one receive of one message with its commit, or of an empty answer where none waits: "
            "the median of 200",
        ),
        ("  receive_p95_us", "of the same"),
        ("memory_of_backlog_bytes", "memory_bytes of many less that of empty"),
        ("receive_ratio", "receive_us of many by that of few"),
        ("empty_receive_ratio", "receive_us of drained by that of empty"),
        ("store_ratio", "store_bytes of drained by that of empty"),
    ),
    "dialogs": (
        ("dialogs, rate", "how many, and how many a second"),
        ("messages", "as many messages on open dialogs, to compare with:"),
        ("  rate", "messages a second"),
        ("  processor_us_per_message", "processor time of all daemons"),
        ("part_of_the_message_rate", "rate of dialogs by that of messages"),
        ("cost_in_messages", "processor time of a dialog, all daemons, by that of a message"),
        ("endpoints_left", "that do not go"),
        ("gone_after_seconds", "from the last dialog until no endpoint is left"),
        ("store_ratio", "store after by store before; of two daemons the greater one"),
        ("daemons", "of each:"),
        ("  processor_us_per_dialog", "processor time"),
        (
            "  memory_before_bytes, memory_on_the_way_bytes, memory_after_bytes",
            "its memory; on the way after each tenth of the dialogs",
        ),
        ("  store_before_bytes, store_after_bytes", "files of its store"),
        ("bench_memory_before_bytes, bench_memory_after_bytes", "memory of this program"),
    ),
    "latency": (
        ("disk_sync_us", "a write of 4 KiB with its sync, where stores are: the median"),
        ("send_alone", "one send at a time, until it is confirmed"),
        ("end_to_end", "at a steady rate, from when the send was due to the committed receive"),
        ("call_alone, call_many", "request, reply and its receive; one caller, many of them"),
        ("  messages, seconds, rate", "of each: that were counted, messages a second"),
        ("  rate_asked", "of end_to_end: what --rate asks for; much less is a growing backlog"),
        ("  latency_us", "how long each takes"),
        ("send_alone_in_syncs", "p50 of send_alone by disk_sync_us"),
    ),
    "large": (
        ("alone", "small messages without large ones"),
        ("among_large", "small messages among large ones"),
        ("large", "the large ones"),
        ("  messages, seconds, rate", "of each: that were counted, messages a second"),
        ("  rate_asked", "of the small ones: what --rate asks for"),
        ("  latency_us", "from when a send was due to the committed receive"),
        (
            "p99_ratio",
            "p99 of among_large by that of alone: of the round in the middle, as all above",
        ),
        ("p99_ratios", "of each round"),
    ),
    "stalled": (
        *_phase(
            "all_work",
            "what three peers received, together",
            "from the send to the committed receive",
        ),
        ("one_stalled", "the same while the fourth is stopped"),
        ("rate_ratio", "rate of one_stalled by that of all_work"),
        ("memory_with_one_stalled_bytes", "of the daemon that sends, at the end"),
    ),
    "idle": (
        ("seconds_until_ready", "from the start of its process to its first answer"),
        ("processor_seconds_until_ready", "processor time of the daemon until then"),
        ("percent_of_one_processor", "that it takes while nothing happens"),
        ("memory_bytes", "of the daemon, at the end of that"),
        ("seconds_until_stopped", "from SIGTERM to its end"),
    ),
    "activation": (
        ("daemon, process", "for each home of a handler:"),
        (
            "  first_reader_ms",
            "milliseconds from the commit of a send to an idle queue until its handler begins: "
            "p50, p99 and most",
        ),
        ("  step_load", "groups that come at once:"),
        ("    readers", "that ran at a time, at most"),
        ("    full_after_seconds", "until so many ran"),
        ("    rate", "messages a second"),
        ("    memory_bytes", "of the daemon and its readers, at most"),
        ("  beside_poison", "the same beside a group that always fails"),
        ("  poison_ratio", "its rate by that of step_load"),
        (
            "  send_beside_blocking_ms",
            "milliseconds that beginning a dialog takes somebody else while a handler blocks",
        ),
    ),
    "replay": (
        ("recorded", "what is played:"),
        (
            "  seconds, messages, transactions, dialogs, clients",
            "from the first send to the last; how many of each",
        ),
        ("  bytes", "of all bodies"),
        ("  left_out", "sends that never were: rolled back, refused, or never committed"),
        ("  lacks", "what files lack of what was recorded, if they do"),
        *_phase("send", "transactions that send", "of one, until it is confirmed"),
        *_phase("end_to_end", "messages received", "from the send to the committed receive"),
        ("behind_us", "how long after its recorded time each was sent, not with --speed 0"),
        *_DAEMONS,
    ),
    "scale": (
        ("points", "for each value of what grows:"),
        ("  send, receive, receive_after_restart", "each phase; the last with --cold, else null:"),
        ("    rate", "messages a second"),
        ("    processor_us_per_message", "processor time of the daemon"),
        ("    client_us_per_message", "processor time of the clients"),
        ("  memory_bytes", "of the daemon after the sends"),
    ),
    "route": (
        ("table_seconds", "to make the table"),
        ("dialogs, with_a_route", "that were classified; of them with a route"),
        ("seconds, rate", "that it took; dialogs a second"),
    ),
    "compare": (
        ("benchmark", "of both results"),
        ("settings", "that differ: those before and after"),
        ("figures", "every number:"),
        ("  name", "its path"),
        ("  before, after", "in the two results; null where one does not have it"),
        ("  ratio", "after by before; null where there is none"),
    ),
}

_F = TypeVar("_F", bound=Callable[..., Any])


def explained(function: _F) -> _F:
    """Append the meaning of the result's keys to the help of a command."""
    assert function.__doc__ is not None, "it is a command"
    rows = KEYS[function.__name__]
    about = [_MICROSECONDS] if any("_us" in key for key, _ in rows) else []
    about += [_PERCENTILES] if any(key.endswith("latency_us") for key, _ in rows) else []
    notes = textwrap.wrap(" ".join(about), _WIDTH)
    lines = ["\b", "Keys of the result:", *_lines(rows), *notes]
    function.__doc__ = "\n\n".join((inspect.cleandoc(function.__doc__), "\n".join(lines)))
    return function


def _lines(rows: _Rows) -> list[str]:
    wide = max(len(key) for key, _ in rows if len(key) <= _LONG) + 4
    found = []
    for key, meaning in rows:
        head = f"  {key}"
        if len(key) > _LONG:
            found.append(head)
            head = ""
        found += textwrap.wrap(
            f"{head:{wide}}{meaning}",
            _WIDTH,
            subsequent_indent=" " * wide,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    return found
