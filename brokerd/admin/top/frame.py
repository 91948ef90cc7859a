"""The lines of one frame of `brokerd top`: what is wrong, queues, destinations (MON-80).

PURE.   Figures and the state of the screen in, lines of styled text out.
Reads:  the figures that it is given.      Calls: doctor.queue_checks, for the chosen line.
Never:  makes a line wider, or a frame higher, than it may be; or lets a name move the cursor.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from brokerd.admin.doctor.findings import Finding
from brokerd.admin.top.board import GRAVE, Board, DestinationLine, Line, QueueLine, chosen
from brokerd.admin.top.keys import Mode, Screen
from brokerd.clock import show_instant
from brokerd.units import printable, show_duration

WIDE: Final = 110
"""Columns from which a line of a queue has room for what is wrong with it."""
LEAST_WIDTH: Final = 64
LEAST_HEIGHT: Final = 10
"""Size for which frames are made; what a smaller terminal has no room for is cut off."""
_CUT: Final = "…"
_FINE: Final = 10
"""Rates below this have a decimal place, as have rounded numbers below the next one."""
_COARSE: Final = 100


class Piece(NamedTuple):
    """A text with a style: `bad`, `warn`, `good`, `head`, `dim`, `chosen`, or none."""

    text: str
    style: str = ""


Row = list[Piece]


def visible(board: Board, screen: Screen) -> list[Line]:
    """Return the lines to choose from, in their order: queues first, then destinations."""
    queues = chosen(board.queues, screen.order, screen.filter)
    destinations = chosen(board.destinations, screen.order, screen.filter)
    if screen.is_reversed:
        queues.reverse()
        destinations.reverse()
    return [*queues, *destinations]


def make_frame(
    board: Board,
    screen: Screen,
    *,
    width: int,
    height: int | None,
    findings: Sequence[Finding] = (),
    lost: str = "",
) -> list[Row]:
    """Return the lines of a frame; `height` None = as many as there are.

    `findings`: those about the chosen line, if the screen shows them. `lost`: why the daemon does
    not answer; the figures are those of its last answer then."""
    screen_width, width = max(1, width), max(LEAST_WIDTH, width)
    screen_height = height
    if height is not None:
        height = max(LEAST_HEIGHT, height)
    head = [_title(board, width), *_verdict(board, width, height, lost)]
    foot = [] if height is None else [_foot(board, screen, width), _keys(screen, width)]
    room = None if height is None else height - len(head) - len(foot)
    match screen.mode:
        case Mode.HELP:
            body = [[Piece(_cut(line, width))] for line in _HELP]
        case Mode.DETAIL:
            body = _detail(board, screen, findings, width)
        case _:
            body = _lists(board, screen, width, room)
    if room is not None:
        body = (body + [[] for _ in range(room)])[:room]
    return [_clipped(row, screen_width) for row in (head + body + foot)[:screen_height]]


def text_of(rows: Sequence[Row]) -> str:
    """Return the frame as plain text."""
    return "\n".join("".join(piece.text for piece in row).rstrip() for row in rows)


# From top to bottom.


def _title(board: Board, width: int) -> Row:
    up = "" if board.up is None else f"  up {_age(board.up)}"
    state = "" if board.state == "ready" else f"  {board.state}"
    dialogs = sum(board.dialogs.values())
    left = f"{board.instance}{state}{up}  clients {board.clients}  peers {board.peers}"
    left += f"  dialogs {_number(dialogs)}"
    right = show_instant(board.now)[11:19]
    left = _cut(printable(left), width - len(right) - 1)
    return [Piece(f"{left:<{width - len(right)}}{right}", "head")]


def _verdict(board: Board, width: int, height: int | None, lost: str) -> list[Row]:
    """Return the verdict, and what is wrong, as far as a third of the frame."""
    if lost:
        return [[Piece(_cut(printable(f"NO ANSWER: {lost}"), width), "bad")]]
    if not board.concerns:
        return [[Piece("OK: all is well", "good")]]
    most = len(board.concerns) if height is None else max(1, height // 3 - 1)
    shown = board.concerns[:most]
    rows = [[Piece(f"ATTENTION: {len(board.concerns)} to look at", "bad")]]
    rows += [[Piece(_cut(f" - {printable(one)}", width), "warn")] for one in shown]
    if len(board.concerns) > most:
        rows[0].append(Piece(f"; {len(board.concerns) - most} of them not shown", "bad"))
    return rows


def _lists(board: Board, screen: Screen, width: int, room: int | None) -> list[Row]:
    lines = visible(board, screen)
    queues = [one for one in lines if isinstance(one, QueueLine)]
    destinations = [one for one in lines if isinstance(one, DestinationLine)]
    broker = len({one.broker for one in board.queues}) > 1
    at = min(screen.cursor, max(0, len(lines) - 1))
    in_queues = at < len(queues)
    for_queues, for_destinations = _share(len(queues), len(destinations), room, in_queues)
    rows = [_queue_head(screen, width)]
    start = _window(at if in_queues else 0, len(queues), for_queues)
    for number, one in enumerate(queues[start : start + for_queues], start):
        rows.append(_queue_row(one, width, is_chosen=number == at, with_broker=broker))
    if not queues:
        rows.append([Piece("  no queue" + (" of that name" if screen.filter else ""), "dim")])
    if not destinations:
        return rows
    rows.append([])
    rows.append(_destination_head(width))
    place = at - len(queues)
    start = _window(max(0, place), len(destinations), for_destinations)
    for number, to in enumerate(destinations[start : start + for_destinations], start):
        rows.append(_destination_row(to, width, is_chosen=number == place))
    return rows


def _share(queues: int, others: int, room: int | None, in_queues: bool) -> tuple[int, int]:
    """Return how many lines of each list are shown; the one with the cursor gets more."""
    if room is None:
        return queues, others
    free = max(2, room - (4 if others else 2))
    if queues + others <= free:
        return queues, others
    lesser = min(others if in_queues else queues, max(1, free // 3)) if others else 0
    return (free - lesser, lesser) if in_queues else (lesser, free - lesser)


def _window(at: int, count: int, size: int) -> int:
    """Return the first line to show, so that line `at` is shown."""
    return max(0, min(at - size // 2, count - size))


_QUEUE_COLUMNS: Final = (
    ("state", 5),
    ("in/s", 7),
    ("out/s", 7),
    ("ready", 7),
    ("oldest", 7),
    ("readers", 7),
    ("parked", 6),
)
_NUMBERS_WIDTH: Final = sum(width + 1 for _, width in _QUEUE_COLUMNS)


def _queue_head(screen: Screen, width: int) -> Row:
    name, why = _widths(width)
    order = f"queue (by {screen.order}{', reversed' if screen.is_reversed else ''})"
    text = f"{_cut(order, name):<{name}}"
    text += "".join(f" {title:>{size}}" for title, size in _QUEUE_COLUMNS)
    return [Piece(f"{text} {'why':<{why - 1}}" if why else text, "head")]


def _queue_row(one: QueueLine, width: int, *, is_chosen: bool, with_broker: bool) -> Row:
    name, why = _widths(width)
    readers = f"{one.readers}/{one.max_readers}" if one.max_readers else "-"
    values = (
        one.state,
        _rate(one.in_per_second),
        _rate(one.out_per_second),
        _number(one.ready),
        "-" if one.oldest is None else _age(one.oldest),
        readers,
        _number(one.parked) if one.parked else "-",
    )
    shown = printable(f"{one.broker}/{one.name}" if with_broker else one.name)
    text = f"{_cut(shown, name):<{name}}"
    text += "".join(
        f" {_cut(value, size):>{size}}"
        for value, (_, size) in zip(values, _QUEUE_COLUMNS, strict=True)
    )
    if why:
        text += f" {_cut(printable(one.trouble), why - 1)}"
    return [Piece(f"{text:<{width}}"[:width], "chosen" if is_chosen else _style(one.pain))]


def _widths(width: int) -> tuple[int, int]:
    """Return the columns of the name of a queue, and of what is wrong with it."""
    why = width - _NUMBERS_WIDTH - 32 if width >= WIDE else 0
    return max(8, width - _NUMBERS_WIDTH - why), why


def _destination_head(width: int) -> Row:
    name = _name_width(width)
    return [Piece(f"{'destination':<{name}} {'state':>10} {'waiting':>7} {'since':>6} why", "head")]


def _destination_row(one: DestinationLine, width: int, *, is_chosen: bool) -> Row:
    name = _name_width(width)
    since = "-" if one.since is None else _age(one.since)
    text = f"{_cut(printable(one.address), name):<{name}} {_cut(one.state, 10):>10} "
    text += f"{_number(one.messages):>7} {since:>6} {printable(one.trouble)}"
    text = _cut(text, width)
    return [Piece(f"{text:<{width}}", "chosen" if is_chosen else _style(one.pain))]


def _name_width(width: int) -> int:
    return max(12, min(32, width - 50))


def _detail(board: Board, screen: Screen, findings: Sequence[Finding], width: int) -> list[Row]:
    lines = visible(board, screen)
    if not lines:
        return [[Piece("nothing is chosen", "dim")]]
    line = lines[min(screen.cursor, len(lines) - 1)]
    title = (
        f"queue {line.name} of broker {line.broker}"
        if isinstance(line, QueueLine)
        else (f"destination {line.address}")
    )
    rows: list[Row] = [[Piece(_cut(printable(title), width), "head")]]
    if isinstance(line, QueueLine) and line.handler:
        rows.append([Piece(_cut(printable(f"handler {line.handler}"), width))])
    for one in findings:
        rows.append([])
        text = f"{one.code} {one.text}"
        rows += [[Piece(part, "warn")] for part in _folded(printable(text), width)]
        rows += [[Piece(part)] for part in _folded(printable(one.mend), width)]
        rows += [
            [Piece(part, "good")] for command in one.commands for part in _folded(command, width)
        ]
    if not findings:
        rows += [[], [Piece(_cut(printable(line.trouble) or "nothing is wrong with it", width))]]
    return rows


def _folded(text: str, width: int) -> list[str]:
    """Return a text as lines that fit, broken between words where there are any."""
    lines: list[str] = []
    while len(text) > width:
        at = text.rfind(" ", 1, width + 1)
        at = width if at < width // 2 else at
        lines.append(text[:at])
        text = text[at:].lstrip()
    return [*lines, text] if text else lines


def _foot(board: Board, screen: Screen, width: int) -> Row:
    """Return what is wrong with the chosen line, or the filter."""
    if screen.mode is Mode.FILTER:
        return [Piece(_cut(f"/{screen.filter}_", width), "head")]
    lines = visible(board, screen)
    if screen.mode is not Mode.LIST or not lines:
        return []
    trouble = lines[min(screen.cursor, len(lines) - 1)].trouble
    return [Piece(_cut(printable(trouble), width), "warn")]


def _keys(screen: Screen, width: int) -> Row:
    if screen.mode is Mode.FILTER:
        text = "type a part of the name, Enter to keep it, Escape to show all"
    elif screen.mode is Mode.LIST:
        text = "q quit  up/down choose  Enter why  s sort  r reverse  / filter  ? help"
        text += f"  [{screen.filter}]" if screen.filter else ""
    else:
        text = "q quit  any other key: back"
    return [Piece(_cut(text, width), "dim")]


_HELP: Final = (
    "",
    "q             quit",
    "up, k         choose the line above      page up      ten lines up",
    "down, j       choose the line below      page down    ten lines down",
    "home, g       the first line             end, G       the last line",
    "Enter         what is wrong with the chosen line, and the command that helps",
    "s             sort by: pain, name, in/s, out/s, ready, oldest, parked",
    "r             reverse the order",
    "/             show only names with a text; Escape shows all again",
    "",
    "in/s, out/s   messages that come, and that are received, a second",
    "ready         messages that can be received; oldest: age of the first",
    "readers       running readers and the most that activation may start",
    "parked        conversation groups set aside: brokerd group ls --parked",
)


def _clipped(row: Row, width: int) -> Row:
    """Return the row without what is beyond the width."""
    clipped: Row = []
    for piece in row:
        clipped.append(Piece(piece.text[:width], piece.style))
        width -= len(clipped[-1].text)
    return clipped


# Values as short texts.


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + _CUT


def _style(pain: int) -> str:
    return "bad" if pain >= GRAVE else "warn" if pain else ""


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if 0 < value < _FINE else _number(round(value))


def _number(value: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= 10 * size or (value >= size and unit != "k"):
            figure = value / size
            return f"{figure:.{figure < _COARSE:d}f}{unit}"
    return str(value)


def _age(seconds: int) -> str:
    for size in (86_400, 3_600, 60):
        if seconds >= size:
            return show_duration(timedelta(seconds=seconds // size * size))
    return f"{seconds}s"
