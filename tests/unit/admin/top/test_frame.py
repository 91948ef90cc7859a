"""What `brokerd top` shows and does: figures, frames of any size, and keys."""

from typing import Any

import pytest
from msgspec.structs import replace

from brokerd.admin.top.board import ORDERS, Board, QueueLine, Sample, make_board
from brokerd.admin.top.frame import make_frame, text_of, visible
from brokerd.admin.top.keys import Mode, Screen, press, read_keys
from brokerd.clock import SECOND, Instant
from brokerd.telemetry.status import DestinationStatus, InstanceStatus, QueueStatus

NOW = Instant(10_000 * SECOND)


def queue(name: str, **more: Any) -> QueueStatus:
    return QueueStatus(**{"name": name, "broker": "main"} | more)


STATUS = InstanceStatus(
    instance="east",
    boot_id="b1",
    now=NOW,
    started_at=Instant(NOW - 7200 * SECOND),
    dialogs={"CO": 3},
    queues=(
        queue("calm", ready=2, enqueued=100, received=98),
        queue("stalled", ready=7, unread="7 messages wait", oldest_ready_at=Instant(0)),
        queue("off", status="off", off_because="manual, by root"),
        queue("busy", ready=123_456, enqueued=1000, received=400, readers=2, max_readers=8),
        queue("held", parked=1),
    ),
    destinations=(
        DestinationStatus(address="tcp://west:4022", state="suppressed", messages=4, failures=2,
                          status_key="connect_failed", text="the TCP connection failed: refused"),
        DestinationStatus(address="tcp://calm:4022", state="online", messages=1),
        DestinationStatus(address="tcp://old:4022", state="idle"),
    ),
)  # fmt: skip


def later(**more: Any) -> Sample:
    queues = [
        replace(one, enqueued=one.enqueued + 50, received=one.received + 25)
        for one in STATUS.queues
    ]
    return Sample(replace(STATUS, queues=tuple(queues), **more), 20.0)


BEFORE = Sample(STATUS, 10.0)
BOARD = make_board(later(), BEFORE)


def names(screen: Screen) -> list[str]:
    return [
        one.name if isinstance(one, QueueLine) else one.address for one in visible(BOARD, screen)
    ]


@pytest.mark.rule("MON-80")
def test_what_hurts_most_is_first_and_what_is_idle_is_left_out() -> None:
    assert names(Screen()) == [
        *("off", "stalled", "held", "busy", "calm"),
        *("tcp://west:4022", "tcp://calm:4022"),
    ]
    assert BOARD.concerns
    text = text_of(make_frame(BOARD, Screen(), width=80, height=24))
    assert text.index("ATTENTION: 4 to look at") < text.index("queue (by pain)")
    assert "queue off of broker main is off" in text
    assert text.index("queue (by pain)") < text.index("destination")


@pytest.mark.rule("MON-80")
def test_rates_are_those_between_two_answers_of_the_same_daemon() -> None:
    busy = next(one for one in BOARD.queues if one.name == "busy")
    assert (busy.in_per_second, busy.out_per_second) == (5.0, 2.5)
    for board in (make_board(later(), None), make_board(later(boot_id="b2"), BEFORE)):
        assert {one.in_per_second for one in board.queues} == {None}
    lines = text_of(make_frame(BOARD, Screen(), width=80, height=24)).splitlines()
    row = next(line for line in lines if line.startswith("busy"))
    assert row.split() == ["busy", "on", "5.0", "2.5", "123k", "-", "2/8", "-"]


@pytest.mark.rule("MON-80")
@pytest.mark.parametrize("size", [(1, 1), (40, 10), (80, 24), (109, 60), (300, 60), (80, None)])
@pytest.mark.parametrize("mode", Mode)
def test_no_frame_is_larger_than_the_terminal(size: tuple[int, int | None], mode: Mode) -> None:
    width, height = size
    many = [replace(BOARD.queues[0], name=f"q{n}" * 30) for n in range(50)]
    evil = replace(BOARD.queues[0], name="\x1b[2J\n", trouble="\x1b]0;x\x07" * 50)
    board = replace(
        BOARD, queues=[*many, evil, *BOARD.queues], concerns=["\x1b[31m" + "x" * 500] * 9
    )
    for cursor in (-1, 0, 30, 56, 10**6):
        rows = make_frame(
            board, Screen(mode=mode, cursor=cursor, filter=""), width=width, height=height
        )
        assert height is None or len(rows) == height
        for row in rows:
            line = "".join(piece.text for piece in row)
            assert len(line) <= width
            assert line.isprintable()


@pytest.mark.rule("MON-80")
@pytest.mark.parametrize("cursor", [0, 5, 25, 50, 59])
def test_the_chosen_line_is_shown_however_many_there_are(cursor: int) -> None:
    lines = [replace(BOARD.queues[0], name=f"q{n:02}", pain=0) for n in range(60)]
    board = replace(BOARD, queues=lines, destinations=[], concerns=[])
    rows = make_frame(board, Screen(order="name", cursor=cursor), width=80, height=24)
    (chosen,) = [row for row in rows if any(piece.style == "chosen" for piece in row)]
    assert chosen[0].text.startswith(f"q{cursor:02}")


@pytest.mark.rule("MON-82")
def test_a_daemon_that_does_not_answer_leaves_its_last_figures() -> None:
    text = text_of(make_frame(BOARD, Screen(), width=80, height=24, lost="it is gone"))
    assert "NO ANSWER: it is gone" in text
    assert "stalled" in text


@pytest.mark.rule("MON-81")
def test_keys_are_read_from_what_terminals_send() -> None:
    data = b"q\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[F\r\x7f/\xc3\xa4\x1b[1;5C?\x1b"
    assert read_keys(data) == [
        *("q", "up", "down", "page up", "page down", "home", "end", "enter", "backspace"),
        *("/", "ä", "?", "escape"),
    ]
    assert read_keys(b"\x1b[") == []


def after(*keys: str, lines: int = 7) -> Screen:
    screen = Screen()
    for key in keys:
        screen = press(screen, key, lines)
    return screen


@pytest.mark.rule("MON-81")
def test_keys_choose_sort_filter_and_leave() -> None:
    assert after("down", "j", "j", "up").cursor == 2
    assert after("up").cursor == 0
    assert after("end").cursor == after("G").cursor == 6
    assert after("G", "home").cursor == after("page down", "g").cursor == 0
    assert after("down", lines=0).cursor == 0
    assert [after(*"s" * n).order for n in range(len(ORDERS) + 1)] == [*ORDERS, "pain"]
    assert names(after("s"))[:5] == ["busy", "calm", "held", "off", "stalled"]
    assert names(after("s", "r"))[:5] == ["stalled", "off", "held", "calm", "busy"]
    assert names(after("/", "w", "E", "s"))[0] == "tcp://west:4022"
    assert after("/", "a", "q", "backspace", "enter") == Screen(filter="a")
    assert after("/", "a", "escape").filter == after("/", "a", "enter", "escape").filter == ""
    assert after("?").mode is after("h").mode is Mode.HELP
    assert after("?", "x").mode is Mode.LIST
    assert after("enter").mode is Mode.DETAIL
    assert after("enter", "down").cursor == 1
    assert after("q").is_over
    assert after("?", "q").is_over
    assert not after("/", "q").is_over
    assert after("x") == Screen()


@pytest.mark.rule("MON-80")
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_puts_the_most_first(order: str) -> None:
    lines = [one for one in visible(BOARD, Screen(order=order)) if isinstance(one, QueueLine)]
    firsts = {"pain": "off", "name": "busy", "ready": "busy", "oldest": "stalled", "parked": "held"}
    assert lines[0].name == firsts.get(order, "busy")
    assert len(lines) == len(BOARD.queues)


def test_a_board_of_nothing_is_shown_too() -> None:
    empty = Board(instance="x", state="starting", now=NOW, up=None, clients=0, peers=0, dialogs={},
                  concerns=[], queues=[], destinations=[])  # fmt: skip
    text = text_of(make_frame(empty, Screen(), width=80, height=24))
    assert "OK: all is well" in text
    assert "no queue" in text
    assert text_of(make_frame(empty, Screen(mode=Mode.DETAIL), width=80, height=24))
