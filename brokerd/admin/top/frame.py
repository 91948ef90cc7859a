"""The lines of one frame of `brokerd top`: what is wrong, queues, destinations (MON-80).

PURE.   Figures and the state of the screen in, lines of styled text out.
Reads:  the figures that it is given.      Calls: board, for the order of lines.
Never:  makes a line wider, or a frame higher, than it may be; or lets a name move the cursor.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final, NamedTuple

from brokerd.admin.doctor.findings import Finding
from brokerd.admin.top.attention import Attention, Cause
from brokerd.admin.top.board import GRAVE, Board, Choice, DestinationLine, Line, QueueLine, chosen
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
    """A text with a style: `bad`, `warn`, `good`, `head`, `dim`, `chosen`, `command`, or none."""

    text: str
    style: str = ""


Row = list[Piece]


def visible(board: Board, screen: Screen) -> list[Choice]:
    """Return the lines to choose from: what asks for attention, queues, destinations."""
    text = screen.filter.casefold()
    queues = chosen(board.queues, screen.order, screen.filter)
    destinations = chosen(board.destinations, screen.order, screen.filter)
    if screen.is_reversed:
        queues.reverse()
        destinations.reverse()
    wanted = [one for one in board.attention if text in one.text.casefold()]
    return [*wanted, *queues, *destinations]


def worst(lines: Sequence[Choice]) -> int:
    """Return the number of the line that hurts most; what asks for attention is before others."""
    pains = [GRAVE + 10 if isinstance(one, Attention) else one.pain for one in lines]
    return pains.index(max(pains)) if pains else 0


def items_about(board: Board, line: Choice, services: Collection[str] = ()) -> list[Attention]:
    """Return what asks for attention and concerns a line; `services`: those of a queue."""
    if isinstance(line, Attention):
        return [line]
    sort, name = "destination", line.name if isinstance(line, QueueLine) else line.address
    if isinstance(line, QueueLine):
        sort = "queue"
    return [one for one in board.attention if one.concerns(sort, line.broker, name, services)]


def chosen_place(lines: Sequence[Choice], screen: Screen) -> int:
    """Return the number of the chosen line; -1 = none."""
    if screen.cursor is None:
        return worst(lines)
    return min(screen.cursor, max(0, len(lines) - 1))


def make_frame(
    board: Board,
    screen: Screen,
    *,
    width: int,
    height: int | None,
    causes: Sequence[Cause] = (),
    lost: str = "",
) -> list[Row]:
    """Return the lines of a frame; `height` None = as many as there are.

    `causes`: those of the chosen line, if the screen shows them; in a list of any height, where no
    key can be pressed, those of all lines, each with its commands (MON-114). `lost`: why the daemon
    does not answer; the figures are those of its last answer then."""
    screen_width, width = max(1, width), max(LEAST_WIDTH, width)
    screen_height = height
    if height is not None:
        height = max(LEAST_HEIGHT, height)
    head = [_title(board, width), _verdict(board, width, lost)]
    if screen.mode in (Mode.HELP, Mode.DETAIL):
        body = _detail(board, screen, causes, width)
        if screen.mode is Mode.HELP:
            body = [[Piece(_cut(line, width))] for line in _HELP]
        rows = [*head, *_page(body, screen, width, None if height is None else height - 3)]
    else:
        rows = _overview(board, screen, head, width, height, causes)
    return [
        row if row and row[0].style == "command" else _clipped(row, screen_width)
        for row in rows[:screen_height]
    ]


def _page(body: list[Row], screen: Screen, width: int, room: int | None) -> list[Row]:
    """Return the part of a page that is shown, and the line of the keys."""
    if room is None:
        return body
    start = max(0, min(screen.scroll, len(body) - room))
    is_more = len(body) > room
    shown = (body[start:] + [[] for _ in range(room)])[:room]
    return [*shown, _keys(screen, width, is_more=is_more)]


def _overview(  # noqa: PLR0917  # what a frame is made of
    board: Board,
    screen: Screen,
    head: list[Row],
    width: int,
    height: int | None,
    causes: Sequence[Cause],
) -> list[Row]:
    """Return the frame of all lines. Lines that would stay blank are used for longer texts."""
    lines = visible(board, screen)
    at = chosen_place(lines, screen)
    asking = [one for one in lines if isinstance(one, Attention)]
    others = [one for one in lines if not isinstance(one, Attention)]
    place = at - len(asking) if at >= 0 else -1
    if height is None:
        rows = []
        for _, some in groupby(asking, _whose):
            texts = []
            for one in some:  # what helps is of the queue: below all that is said of it
                rows += _asking([one], at, width, None)
                texts.append(one.text)
            for cause in causes:
                if cause.whole in texts:
                    rows += _helping(cause, width)
        return [*head, *rows, *_lists(board, screen, others, place, width, None)]
    full = _lists(board, screen, others, place, width, None)
    room = height - len(head) - 2
    budget = max(1, min(height // 3 - 1, room - 5), room - len(full))
    rows = _asking(asking, at, width, budget)
    hidden = len(board.attention) - min(len(asking), budget)
    if hidden:
        head[-1] = [*head[-1], Piece(f"; {hidden} of them not shown", "bad")]
    body = _lists(board, screen, others, place, width, room - len(rows))
    blank = max(0, room - len(rows) - len(body))
    foot = _foot(screen, lines, at, width)[: 1 + min(2, blank)] or [[]]
    body = (body + [[] for _ in range(room)])[: room - len(rows) - len(foot) + 1]
    return [*head, *rows, *body, *foot, _keys(screen, width)]


def _asking(items: Sequence[Attention], at: int, width: int, budget: int | None) -> list[Row]:
    """Return the lines of what asks for attention: one each, up to three while there is room."""
    size = len(items) if budget is None else min(len(items), budget)
    spare = None if budget is None else budget - size
    start = _window(at if at < len(items) else 0, len(items), size)
    rows: list[Row] = []
    for number, one in enumerate(items[start : start + size], start):
        parts = _folded(printable(one.short), width - 2)
        if spare is not None:
            most = 1 + min(spare, 2, len(parts) - 1)
            spare -= most - 1
            rest = " ".join(parts[most - 1 :])
            parts = [*parts[: most - 1], _cut(rest, width - 2)]
        leads = (">" if number == at else "-", *" " * len(parts))
        style = "chosen" if number == at else "warn"
        rows += [
            [Piece(f"{f'{lead} {part}':<{width if number == at else 0}}", style)]
            for lead, part in zip(leads, parts, strict=False)
        ]
    return rows


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


def _verdict(board: Board, width: int, lost: str) -> Row:
    if lost:
        return [Piece(_cut(printable(f"NO ANSWER: {lost}"), width), "bad")]
    if not board.attention:
        return [Piece("OK: all is well", "good")]
    return [Piece(f"ATTENTION: {len(board.attention)} to look at", "bad")]


def _lists(  # noqa: PLR0917  # what a list is made of
    board: Board, screen: Screen, lines: Sequence[Line], at: int, width: int, room: int | None
) -> list[Row]:
    """Return the tables; `at`: the number of the chosen one of these lines, below 0 = none."""
    queues = [one for one in lines if isinstance(one, QueueLine)]
    destinations = [one for one in lines if isinstance(one, DestinationLine)]
    broker = len({one.broker for one in board.queues}) > 1
    in_queues = at < len(queues)
    if room is not None:  # without the headings, and the rows that say that nothing matches
        room -= 1 + (not queues) + bool(board.destinations) * (2 + (not destinations))
    for_queues, for_destinations = _share(len(queues), len(destinations), room, in_queues)
    none = f"  nothing matches {_cut(printable(screen.filter), width - 20)}"
    rows = [_queue_head(screen, width)]
    start = _window(max(0, at) if in_queues else 0, len(queues), for_queues)
    for number, one in enumerate(queues[start : start + for_queues], start):
        rows.append(_queue_row(one, width, is_chosen=number == at, with_broker=broker))
    if not queues:
        rows.append([Piece(none if screen.filter else "  no queue", "dim")])
    if not board.destinations:
        return rows
    rows.append([])
    rows.append(_destination_head(width))
    place = at - len(queues)
    start = _window(max(0, place), len(destinations), for_destinations)
    for number, to in enumerate(destinations[start : start + for_destinations], start):
        rows.append(_destination_row(to, width, is_chosen=number == place))
    if not destinations:
        rows.append([Piece(none, "dim")])
    return rows


def _share(queues: int, others: int, room: int | None, in_queues: bool) -> tuple[int, int]:
    """Return how many lines of each list are shown; the one with the cursor gets more.

    `room`: the rows beside the headings; None = as many as there are."""
    if room is None or queues + others <= room:
        return queues, others
    free = max(2, room)
    lesser = min(others if in_queues else queues, max(1, free // 3))
    greater = min(queues if in_queues else others, free - lesser)
    lesser = free - greater
    return (greater, lesser) if in_queues else (lesser, greater)


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
    return [Piece(f"  {text} {'why':<{why - 1}}" if why else f"  {text}", "head")]


def _queue_row(one: QueueLine, width: int, *, is_chosen: bool, with_broker: bool) -> Row:
    name, why = _widths(width)
    readers = f"{one.readers}/{one.max_readers}" if one.max_readers else "-"
    readers = "off" if one.is_activation_off and not one.readers else readers
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
    text = f"{'>' if is_chosen else ' '} {text}"
    return [Piece(f"{text:<{width}}"[:width], "chosen" if is_chosen else _style(one.pain))]


def _widths(width: int) -> tuple[int, int]:
    """Return the columns of the name of a queue, and of what is wrong with it."""
    why = width - _NUMBERS_WIDTH - 32 if width >= WIDE else 0
    return max(8, width - _NUMBERS_WIDTH - why - 2), why


def _destination_head(width: int) -> Row:
    name = _name_width(width)
    return [
        Piece(f"  {'destination':<{name}} {'state':>10} {'waiting':>7} {'since':>6} why", "head")
    ]


def _destination_row(one: DestinationLine, width: int, *, is_chosen: bool) -> Row:
    name = _name_width(width)
    since = "-" if one.since is None else _age(one.since)
    text = f"{'>' if is_chosen else ' '} "
    text += f"{_cut(printable(one.address), name):<{name}} {_cut(one.state, 10):>10} "
    text += f"{_number(one.messages):>7} {since:>6} {printable(one.trouble)}"
    text = _cut(text, width)
    return [Piece(f"{text:<{width}}", "chosen" if is_chosen else _style(one.pain))]


def _name_width(width: int) -> int:
    return max(12, min(32, width - 52))


def _detail(board: Board, screen: Screen, causes: Sequence[Cause], width: int) -> list[Row]:
    """Return the page of the chosen line: each cause, its code, and commands, all of them whole."""
    lines = visible(board, screen)
    at = chosen_place(lines, screen)
    if not lines or at < 0:
        return [[Piece("nothing is chosen", "dim")]]
    line = lines[at]
    title = _name_of(line)
    if isinstance(line, Attention) and not line.sort:
        title = next((one.about for cause in causes for one in cause.findings), title)
    rows = _paragraph(title, width, "head")
    if isinstance(line, QueueLine) and line.handler:
        rows += _paragraph(f"handler {line.handler}", width)
    for cause in causes:
        rows += _explained(cause, width)
    if not causes:
        trouble = line.short if isinstance(line, Attention) else line.trouble
        rows += [[], *_paragraph(trouble or "nothing is wrong with it", width)]
    return rows


def _name_of(line: Choice) -> str:
    if isinstance(line, Attention):
        return line.about
    if isinstance(line, QueueLine):
        return f"queue {line.name} of broker {line.broker}"
    return f"destination {line.address}"


def _explained(cause: Cause, width: int) -> list[Row]:
    """Return the rows of one cause. A finding that repeats its text gives the cause first."""
    if not cause.findings:
        return [[], *_paragraph(cause.text, width, "warn")]
    rows: list[Row] = []
    for one in cause.findings:
        text = one.text
        if cause.text and text.startswith(cause.whole):
            text = cause.text + text.removeprefix(cause.whole)
        rows += [[], *_paragraph(f"{one.code} {text}", width, "warn")]
        mend, commands = _remedy(one)
        rows += _paragraph(mend, width)
        for command in commands:
            rows += _paragraph(command, width, "good", indent=2)
    return rows


def _whose(one: Attention) -> tuple[str, ...]:
    """Return what the concerns of one queue have in common, and no other concern has."""
    return (one.broker, one.name) if one.sort == "queue" else (one.text,)


def _helping(cause: Cause, width: int) -> list[Row]:
    """Return what helps against a cause: below its line, and further in."""
    rows: list[Row] = []
    for one in cause.findings:
        mend, commands = _remedy(one)
        rows += [[Piece(f"  {part}")] for part in _folded(printable(mend), width - 2)]
        # Whole, however long: a command that is broken into rows cannot be pasted.
        rows += [[Piece(f"    {printable(command)}", "command")] for command in commands]
    return rows


def _remedy(finding: Finding) -> tuple[str, list[str]]:
    """Return what to do about a finding, in words, and as commands."""
    mend, there, command_there = finding.mend.partition("there: brokerd ")
    commands = [f"brokerd {command_there}"] if there else []
    return (mend + there).removesuffix(" brokerd "), [*commands, *finding.commands]


def _paragraph(text: str, width: int, style: str = "", *, indent: int = 0) -> list[Row]:
    """Return a text as rows; an indented one has its further rows further in."""
    parts = _folded(printable(text), width - 3 * indent)
    leads = [" " * indent, *[" " * 3 * indent] * len(parts)]
    return [[Piece(lead + part, style)] for lead, part in zip(leads, parts, strict=False)]


def _folded(text: str, width: int) -> list[str]:
    """Return a text as lines that fit, broken between words where there are any."""
    lines: list[str] = []
    while len(text) > width:
        at = text.rfind(" ", 1, width + 1)
        at = width if at < 0 else at
        lines.append(text[:at])
        text = text[at:].lstrip()
    return [*lines, text] if text else lines


def _foot(screen: Screen, lines: Sequence[Choice], at: int, width: int) -> list[Row]:
    """Return what is wrong with the chosen line, or the filter."""
    if screen.mode is Mode.FILTER:
        return [[Piece(_cut(f"/{screen.filter}_", width), "head")]]
    if not lines or at < 0:
        return []
    line = lines[at]
    if isinstance(line, Attention):
        return [[Piece("Enter: the whole text, and the commands that help", "dim")]]
    return _paragraph(line.trouble, width, "warn")


def _keys(screen: Screen, width: int, *, is_more: bool = False) -> Row:
    if screen.mode is Mode.FILTER:
        text = "type a part of the name, Enter to keep it, Escape to show all"
    elif screen.mode is Mode.LIST:
        text = "q quit  up/down choose  Enter why  s sort  r reverse  / filter  ? help"
        text += f"  [{screen.filter}]" if screen.filter else ""
    else:
        text = "q quit  " + ("up/down other lines  " if screen.mode is Mode.DETAIL else "")
        text += "page down: more  " if is_more else ""
        text += "any other key: back"
    return [Piece(_cut(text, width), "dim")]


_HELP: Final = (
    "q              quit",
    "up k, down j   choose a line; page up, page down, home g, end G: go further",
    "Enter          why the chosen line suffers, and the commands that help",
    "s, r           sort by pain, name, in/s, out/s, ready, oldest, parked; reverse",
    "/              show only names with a text; Escape shows all again",
    "",
    "QUEUES",
    "state          on; off: nothing is received from it; full: it is at its limit",
    "in/s, out/s    messages that come, and that are received, a second",
    "ready, oldest  messages that can be received; the age of the first",
    "readers        running, and the most that activation may start; off: the queue",
    "               is on, but its activation is off, so a program has to read it",
    "parked         conversation groups set aside: brokerd group ls --parked",
    "",
    "DESTINATIONS",
    "state          online: connected; idle: not connected, nothing waits;",
    "               connecting; suppressed: connecting failed, the next attempt is",
    "               later; delayed: the messages have no destination yet",
    "waiting        messages that the other side has not acknowledged yet",
    "since          for how long it has been in that state",
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
