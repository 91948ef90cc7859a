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
    "A latency has p50, p95, p99, p999, which are exact to within 2 %, and the longest, most."
)

_Rows = tuple[tuple[str, str], ...]


def _phase(name: str, what: str, latency: str) -> _Rows:
    return (
        (name, f"{what}:"),
        ("  messages, seconds", "messages counted; length of the counted time"),
        ("  rate", "messages a second"),
        ("  latency_us", latency),
    )


_DAEMONS: Final[_Rows] = (
    ("processor_us_per_message", "processor time of each daemon, in the counted time"),
    ("counters", "of each daemon, in the counted time:"),
    ("  sends, receives", "messages sent; receives, each of one conversation group"),
    ("  rollbacks", "transactions rolled back"),
    ("  flushes, changesets", "flushes of the store, one sync each; changesets in them"),
    ("  fragments_received", "messages, or pieces of large ones, from another daemon"),
    ("  fragments_stored", "of these, the stored ones"),
    ("  fragments_duplicate", "of these, repeats of stored ones"),
    ("  fragments_buffered", "of these, buffered until earlier ones arrive"),
    ("  retransmitted", "fragments sent again"),
    ("  acks_sent, acks_carried", "acknowledgements sent separately; with a message"),
    ("peak_memory_bytes", "the largest memory use of one daemon since its start"),
)

KEYS: Final[dict[str, _Rows]] = {
    "local": (
        *_phase("send", "the sends", "of a send, until it is confirmed"),
        ("  flushes", "flushes of the store in the counted time, one sync each"),
        ("  syncs_per_message", "flushes divided by messages"),
        ("receive", "the same for receiving these messages, but instead of latency_us:"),
        ("  since_sent_us", "from the send to the committed receive: the backlog's age"),
        ("peak_memory_bytes", "the largest memory use of the daemon since its start"),
    ),
    "peer": (
        *_phase("send", "sends at east", "of a send, until it is confirmed"),
        *_phase(
            "end_to_end", "messages received at west", "from the send to the committed receive"
        ),
        *_DAEMONS,
        ("direct, forwarder", "with --compare: all of the above, without and with a forwarder"),
        ("rate_ratio", "with --compare: rate of end_to_end with a forwarder / without"),
    ),
    "scale_out": (
        ("alone, together", "one daemon; all at once. Of each:"),
        *_phase("sum", "messages received at all daemons", "from send to committed receive"),
        ("  rates", "messages a second at each daemon"),
        ("  processor_us_per_message", "processor time of the daemons for a message"),
        ("  flushes", "flushes of all stores in the counted time"),
        ("  peak_memory_bytes", "the largest memory use of one daemon since its start"),
        ("sum_ratio", "rate of together / alone"),
    ),
    "stages": (
        *_phase(
            "end_to_end",
            "messages received",
            "from the send to the committed receive",
        ),
        ("client_us_per_message", "processor time of send, and of receive with its commit"),
        ("daemons", "of each, processor time per message, from send to receive:"),
        ("  processor_us_per_message", "all processor time: the sum of"),
        ("  loop_us", "that of the loop's thread,"),
        ("  writer_us", "that of the thread that writes, and"),
        ("  other_threads_us", "that of all other threads"),
        ("  stages_us, modules_us", "that of the loop by stage, and its busiest modules"),
        ("  kernel_us", "the kernel's part of the processor time"),
        ("  loop_percent", "percentage of one processor that the loop's thread used"),
        ("  flush_times", "elapsed times of a flush, from all flushes of the run:"),
        ("    messages", "messages in a flush, the mean"),
        ("    hops_us", "from the loop to the writer and back, the mean"),
        (
            "    hops_p50_us, hops_p95_us, hops_p99_us, hops_p999_us, hops_most_us",
            "percentiles of the same, and the longest",
        ),
        ("    build_us, commit_us", "its statements; the COMMIT with its sync: means"),
    ),
    "backlog": (
        ("fill_rate, drain_rate", "messages a second"),
        ("empty, few, many, drained", "with no, 1,000, all messages waiting, and with none again:"),
        ("  messages", "number of waiting messages"),
        ("  memory_bytes", "memory of the daemon"),
        ("  store_bytes", "size of its stores: files, or schemas on a server"),
        (
            "  receive_us",
            "one receive of one message with its commit, or of an empty answer where none waits: "
            "the median of 200",
        ),
        ("  receive_p95_us", "of the same"),
        ("memory_of_backlog_bytes", "memory_bytes of many - of empty"),
        ("receive_ratio", "receive_us of many / of few"),
        ("empty_receive_ratio", "receive_us of drained / of empty"),
        ("store_ratio", "store_bytes of drained / of empty"),
    ),
    "dialogs": (
        ("dialogs, rate", "number of dialogs; dialogs a second"),
        ("messages", "the same number of messages on open dialogs, for comparison:"),
        ("  rate", "messages a second"),
        ("  processor_us_per_message", "processor time of all daemons"),
        ("part_of_the_message_rate", "rate of dialogs / rate of messages"),
        ("cost_in_messages", "processor time, all daemons, of a dialog / of a message"),
        ("endpoints_left", "endpoints that are not removed"),
        ("gone_after_seconds", "from the last dialog until no endpoint is left"),
        ("store_ratio", "store after / before; of two daemons the larger ratio"),
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
        ("disk_sync_us", "a write of 4 KiB with its sync, on the disk of the stores: median"),
        ("send_alone", "one send at a time, until it is confirmed"),
        ("end_to_end", "at a steady rate, from when the send was due to the committed receive"),
        ("call_alone, call_many", "request, reply and its receive; one caller, many callers"),
        ("  messages, seconds, rate", "of each: messages counted, their time, messages a second"),
        ("  rate_asked", "of end_to_end: that of --rate; a much lower rate is a growing backlog"),
        ("  latency_us", "how long each takes"),
        ("send_alone_in_syncs", "p50 of send_alone / disk_sync_us"),
    ),
    "large": (
        ("alone", "small messages without large ones"),
        ("among_large", "small messages among large ones"),
        ("large", "the large messages"),
        ("  messages, seconds, rate", "of each: messages counted, their time, messages a second"),
        ("  rate_asked", "of the small messages: that of --rate"),
        ("  latency_us", "from when a send was due to the committed receive"),
        (
            "p99_ratio",
            "p99 of among_large / of alone, in the median round, as everything above",
        ),
        ("p99_ratios", "p99_ratio of each round"),
    ),
    "stalled": (
        *_phase(
            "all_work",
            "messages that three peers received, together",
            "from the send to the committed receive",
        ),
        ("one_stalled", "the same while the fourth is stopped"),
        ("rate_ratio", "rate of one_stalled / of all_work"),
        ("memory_with_one_stalled_bytes", "memory of the sending daemon, at the end"),
    ),
    "idle": (
        ("seconds_until_ready", "from the start of its process to its first answer"),
        ("processor_seconds_until_ready", "processor time of the daemon until then"),
        ("percent_of_one_processor", "processor use of the idle daemon"),
        ("memory_bytes", "memory of the idle daemon, at the end"),
        ("seconds_until_stopped", "from SIGTERM to its end"),
    ),
    "activation": (
        ("daemon, process", "with handlers in the daemon, and in processes:"),
        (
            "  first_reader_ms",
            "milliseconds from the commit of a send to an idle queue until its handler begins: "
            "p50, p99 and most",
        ),
        ("  step_load", "groups that arrive at once:"),
        ("    readers", "largest number of running readers"),
        ("    full_after_seconds", "time until that number ran"),
        ("    rate", "messages a second"),
        ("    memory_bytes", "largest memory use of the daemon and its readers"),
        ("  beside_poison", "the same, together with a group that always fails"),
        ("  poison_ratio", "rate of beside_poison / of step_load"),
        (
            "  send_beside_blocking_ms",
            "milliseconds in which another client begins a dialog while a handler blocks",
        ),
    ),
    "replay": (
        ("recorded", "the replayed recording:"),
        (
            "  seconds, messages, transactions, dialogs, clients",
            "from the first send to the last; the number of each",
        ),
        ("  bytes", "total size of the bodies"),
        ("  left_out", "sends without effect: rolled back, refused, or never committed"),
        ("  lacks", "parts of the recording that the files lack, if any"),
        *_phase("send", "transactions that send", "of one, until it is confirmed"),
        *_phase("end_to_end", "messages received", "from the send to the committed receive"),
        ("behind_us", "delay of each send after its recorded time, not with --speed 0"),
        *_DAEMONS,
    ),
    "scale": (
        ("points", "for each value of the growing quantity:"),
        ("  send, receive, receive_after_restart", "each phase; the last with --cold, else null:"),
        ("    rate", "messages a second"),
        ("    processor_us_per_message", "processor time of the daemon"),
        ("    client_us_per_message", "processor time of the clients"),
        ("  memory_bytes", "memory of the daemon after the sends"),
    ),
    "route": (
        ("table_seconds", "to make the table"),
        ("dialogs, with_a_route", "classified dialogs; those of them with a route"),
        ("seconds, rate", "duration; dialogs a second"),
    ),
    "compare": (
        ("benchmark", "name of the benchmark of both results"),
        ("settings", "settings that differ, before and after"),
        ("figures", "every number:"),
        ("  name", "its path"),
        ("  before, after", "in the two results; null if a result lacks the number"),
        ("  ratio", "after / before; null if one is missing"),
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
