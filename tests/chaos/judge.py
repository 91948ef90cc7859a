"""Judge: whether what was received is the stream, and whether the daemons are done with it.

Reads:  journals, the stream, the logs and stores of daemons that have stopped.
Calls:  `brokerd.testing.check`.      Never:  changes anything.
"""

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from brokerd.testing.check import check
from brokerd.testing.evidence import Index, Outcome, Stored
from brokerd.testing.history import HistoryUnusable, merge, read_events
from tests.chaos.journal import content_hash
from tests.chaos.stream import Ends, Stream, reply_content, running
from tests.engine.simulation.recording import INITIATOR, TARGET

_SHOWN: Final = 5
"""Findings of one kind that are told in full."""
PEER_GONE: Final = -8462
"""The error of a dialog whose other side has nothing of it."""


class Verdict(msgspec.Struct):
    """What the journals say."""

    problems: list[str]
    messages: int = 0
    replies: int = 0
    transactions: int = 0


def judge(journal: Path, stream: Stream, *, complete: bool) -> Verdict:
    """Hold what all programs did against what brokerd promises, and against the stream.

    Where the run is not `complete`, what was not received may still be stored."""
    files = sorted(path for path in journal.glob("*.jsonl") if path.stat().st_size)
    try:
        events = merge([read_events(path) for path in files])
        stores: tuple[Stored, ...] | None = () if complete else None
        index = Index(events, stores)
        found = [one.show() for one in check(events, stores)]
    except HistoryUnusable as error:
        return Verdict([f"the journals cannot be judged: {error}"])
    wanted = _wanted(stream)
    problems = _few(found)
    if complete:
        problems += _few(_unlike(wanted, _received(index)))
        problems += _few(ends(index, stream))
    return Verdict(
        problems,
        messages=sum(len(one) for (_, side), one in wanted.items() if side == INITIATOR),
        replies=sum(len(one) for (_, side), one in wanted.items() if side == TARGET),
        transactions=len(index.transactions),
    )


Direction = tuple[str, str]
"""A dialog, and the side that sends."""


def _received(index: Index) -> dict[Direction, list[tuple[int, str]]]:
    """The committed receipts of each direction in their order: sequence number and hash."""
    found: defaultdict[Direction, list[tuple[int, int, str]]] = defaultdict(list)
    for uid in index.receipts:
        for got in index.takers(uid, Outcome.COMMITTED):
            sender = INITIATOR if got.side == TARGET else TARGET
            found[got.dialog or "", sender].append((got.at, got.seq or 0, got.hash or ""))
    return {key: [(seq, text) for _, seq, text in sorted(rows)] for key, rows in found.items()}


def _wanted(stream: Stream) -> dict[Direction, list[str]]:
    """The hashes of the contents that each direction is to bring, in their order."""
    found: defaultdict[Direction, list[str]] = defaultdict(list)
    digests: dict[int, bytes] = defaultdict(bytes)
    for entry in stream:
        name, content = f"d{entry.dialog}", stream.content(entry)
        found[name, INITIATOR].append(content_hash(content))
        digests[entry.dialog] = running(digests[entry.dialog], content)
        if stream.dialogs[entry.dialog].is_answered(entry.number):
            answer = reply_content(entry.number + 1, digests[entry.dialog], content)
            found[name, TARGET].append(content_hash(answer))
    return dict(found)


def _unlike(
    wanted: dict[Direction, list[str]], told: dict[Direction, list[tuple[int, str]]]
) -> Iterator[str]:
    for (dialog, side), expected in wanted.items():
        yield from _differences(dialog, side, expected, told.pop((dialog, side), []))
    yield from (f"{dialog} from its {side}: nothing was to be sent" for dialog, side in told)


def _differences(
    dialog: str, side: str, expected: list[str], got: list[tuple[int, str]]
) -> Iterator[str]:
    where = f"{dialog} from its {side}"
    hashes = [text for _, text in got]
    if hashes != expected:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(expected, hashes, strict=False))
        at = sum(1 for _ in same)
        yield (
            f"{where}: {len(expected)} messages were to be received and {len(got)} were; "
            f"they differ from number {at} on"
        )
    elif [seq for seq, _ in got] != list(range(len(got))):
        yield f"{where}: the sequence numbers are not those of the stream"


def ends(index: Index, stream: Stream) -> Iterator[str]:
    """The other side of each end was told of it, once.

    A client that is killed before its commit is answered leaves an outcome that nobody knows, if
    its transaction received an end and nothing else: no message shows what became of it. Such a
    transaction counts where no other one was told."""
    told, perhaps = Counter[Ended](), Counter[Ended]()
    for event in index.events_of("ended"):
        if event.tx is None:
            continue
        outcome = index.outcome((event.client, event.tx))
        if outcome is Outcome.COMMITTED:
            told[event.dialog, event.side] += 1
        elif outcome is Outcome.UNKNOWN:
            perhaps[event.dialog, event.side] += 1
    for number, dialog in enumerate(stream.dialogs):
        which = f"d{number}", INITIATOR if dialog.ends is Ends.LEDGER else TARGET
        times = told.pop(which, 0)
        if times != 1 and not (times == 0 and perhaps[which]):
            yield f"{which[0]}: its {which[1]} was told {times} times that it is over"
    yield from (f"{name}: its {side} was told of an end of its own" for name, side in told)


Ended = tuple[str | None, str | None]
"""A dialog, and the side that was told of its end."""


def _few(found: Iterable[str]) -> list[str]:
    """Some of them, and how many more there are."""
    every = list(found)
    more = len(every) - _SHOWN
    return every[:_SHOWN] + ([f"and {more} more of this kind"] if more > 0 else [])


# What daemons say.


class _Line(msgspec.Struct):
    severity: str = ""
    event: str = ""
    code: object = None
    status_key: str = ""


def judge_log(path: Path) -> list[str]:
    """Alarms of a daemon's log that nothing in these runs accounts for."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            read = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            continue  # the line that was written when it was killed
        if read.event == "broker.lost_messages" or read.code == PEER_GONE:
            found.append(f"{path.name} tells of a loss where nothing was lost: {line}")
        elif read.status_key == "damaged":
            found.append(f"{path.name} tells of damage where nothing is damaged: {line}")
        elif read.severity in ("error", "critical"):
            found.append(f"{path.name}: {line}")
    return _few(found)


class _LoginLine(msgspec.Struct):
    time: datetime
    event: str = ""
    subclass: str = ""


SLACK: Final = 5.0
"""Seconds in which an attempt to log in that was begun before a change comes to its end."""
_REFUSED: Final = frozenset({"authentication_failure", "authorization_failure"})


def judge_logins(path: Path, windows: Sequence[tuple[float, float]]) -> list[str]:
    """Logins that a daemon refused, or was refused, while nobody was revoked or had expired.

    `windows`: when refusals are right, in seconds since 1970."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        if "audit.broker_login" not in line:
            continue
        try:
            read = msgspec.json.decode(line, type=_LoginLine)
        except msgspec.MsgspecError:
            continue  # the line that was written when it was killed
        at = read.time.timestamp()
        is_right = any(first - SLACK <= at <= last + SLACK for first, last in windows)
        if read.subclass in _REFUSED and not is_right:
            found.append(f"{path.name}: a login was refused for no reason: {line}")
    return _few(found)


class _DialogLine(msgspec.Struct):
    conversation_id: str = ""
    sent: int = 0
    acknowledged: int = 0
    undelivered: int = 0


def judge_closing_lines(folder: Path) -> list[str]:
    """Closed dialogs of a metrics log that have undelivered messages, where all were delivered."""
    decoder = msgspec.json.Decoder(_DialogLine)
    found = []
    for path in sorted(folder.rglob("*.jsonl.*")):
        opened = gzip.open if path.suffix == ".gz" else Path.open
        if path.suffix not in (".gz", ".open"):
            continue
        with opened(path, "rb") as lines:
            for line in lines:
                if b'"dialog"' not in line or b'"closed"' not in line:
                    continue
                try:
                    read = decoder.decode(line)
                except msgspec.MsgspecError:
                    continue  # the line that was written when it was killed
                if read.undelivered or read.acknowledged != read.sent:
                    found.append(
                        f"the closing line of {read.conversation_id} in {path.parent.name}/"
                        f"{path.name} has {read.undelivered} undelivered of {read.sent}"
                    )
    return _few(found)
