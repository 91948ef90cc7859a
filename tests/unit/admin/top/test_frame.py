"""What `brokerd top` shows and does: figures, frames of any size, and keys."""

from typing import Any

import pytest
from msgspec.structs import replace

from brokerd.admin.top.attention import Attention, attention, causes, failing
from brokerd.admin.top.board import ORDERS, Board, QueueLine, Sample, make_board
from brokerd.admin.top.frame import items_about, make_frame, text_of, visible, worst
from brokerd.admin.top.keys import Mode, Screen, press, read_keys
from brokerd.clock import SECOND, Instant
from brokerd.telemetry.status import (
    DestinationStatus,
    FailedDialogs,
    InstanceStatus,
    QueueStatus,
    StoreStatus,
    concerns,
)

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


LONG = Attention(
    text="\x1b[31m" + "x" * 500, short="\x1b[31m" + "x" * 500, about="instance \x07" + "y" * 200
)


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
        one.name if isinstance(one, QueueLine) else one.address
        for one in visible(BOARD, screen)
        if not isinstance(one, Attention)
    ]


@pytest.mark.rule("MON-80")
def test_what_hurts_most_is_first_and_what_is_idle_is_left_out() -> None:
    assert names(Screen()) == [
        *("off", "stalled", "held", "busy", "calm"),
        *("tcp://west:4022", "tcp://calm:4022"),
    ]
    assert [one.text for one in BOARD.attention] == concerns(STATUS)
    text = text_of(make_frame(BOARD, Screen(), width=80, height=24))
    assert text.index("ATTENTION: 4 to look at") < text.index("queue (by pain)")
    assert "queue off is off: manual, by root" in text
    assert text.index("queue (by pain)") < text.index("destination")


@pytest.mark.rule("MON-80")
def test_rates_are_those_between_two_answers_of_the_same_daemon() -> None:
    busy = next(one for one in BOARD.queues if one.name == "busy")
    assert (busy.in_per_second, busy.out_per_second) == (5.0, 2.5)
    for board in (make_board(later(), None), make_board(later(boot_id="b2"), BEFORE)):
        assert {one.in_per_second for one in board.queues} == {None}
    lines = text_of(make_frame(BOARD, Screen(), width=80, height=24)).splitlines()
    row = next(line for line in lines if line.startswith("  busy"))
    assert row.split() == ["busy", "on", "5.0", "2.5", "123k", "-", "2/8", "-"]


@pytest.mark.rule("MON-80")
@pytest.mark.parametrize("size", [(1, 1), (40, 10), (80, 24), (109, 60), (300, 60), (80, None)])
@pytest.mark.parametrize("mode", Mode)
def test_no_frame_is_larger_than_the_terminal(size: tuple[int, int | None], mode: Mode) -> None:
    width, height = size
    many = [replace(BOARD.queues[0], name=f"q{n}" * 30) for n in range(50)]
    evil = replace(BOARD.queues[0], name="\x1b[2J\n", trouble="\x1b]0;x\x07" * 50)
    board = replace(BOARD, queues=[*many, evil, *BOARD.queues], attention=[LONG] * 9)
    for cursor in (None, -1, 0, 30, 56, 10**6):
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
    board = replace(BOARD, queues=lines, destinations=[], attention=[])
    rows = make_frame(board, Screen(order="name", cursor=cursor), width=80, height=24)
    (chosen,) = [row for row in rows if any(piece.style == "chosen" for piece in row)]
    assert chosen[0].text.startswith(f"> q{cursor:02}")


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


FAILED = FailedDialogs(
    broker="main", service="shop", far_service="busy", code=-8494, count=4, is_initiator=True,
    reason="peer:east has no send permission on service busy", example="a1" * 16, last_at=NOW,
)  # fmt: skip
HELD = STATUS.destinations[0]
WORSE = replace(
    STATUS,
    stores=(StoreStatus(broker="main", state="full", reason="the disk is full", path="/d/s.db"),),
    failed_dialogs=(FAILED,),
    destinations=(replace(HELD, service="far"), *STATUS.destinations[1:]),
    warnings=("a task fails",),
    listen_error="the port is taken",
    endpoint_state="stopped",
    no_master_key="master.key is missing",
)


def page(status: InstanceStatus, cursor: int | None, *, width: int = 80) -> str:
    """The page of a line, as `cli/top.py` makes it."""
    board = make_board(Sample(status, 20.0), None)
    screen = Screen(mode=Mode.DETAIL, cursor=cursor)
    lines = visible(board, screen)
    line = lines[worst(lines) if cursor is None else cursor]
    items = items_about(board, line)
    queue = (line.broker, line.name) if isinstance(line, QueueLine) else None
    rows = make_frame(board, screen, width=width, height=None, causes=causes(status, items, queue))
    return text_of(rows[2:])


def place(status: InstanceStatus, word: str) -> int:
    """The number of the first line that has a word; what asks for attention is before others."""
    lines = visible(make_board(Sample(status, 20.0), None), Screen())
    return next(at for at, one in enumerate(lines) if word in repr(one))


@pytest.mark.rule("MON-110")
def test_each_line_of_attention_has_a_page_with_code_cause_and_commands() -> None:
    items = attention(WORSE)
    assert [one.text for one in items] == concerns(WORSE)
    for at, code in enumerate(
        ("D43", "D23", "D22", "D45", "D06", "D44", "D78", "D77", "D04", "D46")
    ):
        text = page(WORSE, at)
        assert f"\n{code} " in text, text
        assert "…" not in text
    text = page(WORSE, place(WORSE, "-8494"))
    assert text.splitlines()[0] == "dialogs of broker main"
    assert "D77 error -8494: peer:east has no send permission" in text
    assert "\n  brokerd grant send on busy to peer:east\n" in text
    assert f"\n  brokerd dialog ls --where conversation_id={'a1' * 16}" in text
    assert "D78 the TCP connection failed: refused (4 messages wait for far at" in page(WORSE, 6)


@pytest.mark.rule("MON-110")
def test_the_cause_of_the_chosen_line_is_first_on_its_page() -> None:
    both = queue("q", full="9 of 9 messages", max_messages=9, parked=2, last_error="boom")
    full, parked = (page(InstanceStatus(now=NOW, queues=(both,)), at) for at in (0, 1))
    assert full.index("D74") < full.index("D44 2 groups are parked: boom")
    assert parked.index("D44") < parked.index("D74")


@pytest.mark.rule("MON-119")
def test_a_failure_comes_before_the_messages_that_its_dialogs_hold() -> None:
    over = DestinationStatus(
        address="", state="delayed", messages=2, status_key="held_after_error", service="busy",
        broker="main", dialog="d1", text="held: the dialog is in error",
    )  # fmt: skip
    status = InstanceStatus(now=NOW, destinations=(over, HELD), failed_dialogs=(FAILED,))
    items = attention(status)
    assert [one.text for one in items] == concerns(status)
    assert [one.sort for one in items] == ["destination", "dialogs", "destination"]
    assert items[2].short == "the dialog is in error, so nothing more is sent on it (busy)"
    assert "\n  brokerd dialog end d1 --broker main" in page(status, 2)


@pytest.mark.rule("MON-114", "MON-119")
def test_all_concerns_of_a_queue_stand_together_above_what_helps() -> None:
    both = queue("q", full="9 of 9 messages", max_messages=9, parked=2, last_error="boom")
    status = InstanceStatus(now=NOW, queues=(both, queue("r", unread="1 message waits")))
    board = make_board(Sample(status, 20.0), None)
    explained = causes(status, attention(status))
    rows = make_frame(board, Screen(cursor=-1), width=80, height=None, causes=explained)
    shown = text_of(rows).splitlines()
    full, parked, unread = (at for at, line in enumerate(shown) if line.startswith("- "))
    assert "is full" in shown[full]
    assert shown[parked] == "- queue q: 2 groups are parked: boom"
    assert parked == full + 1
    helps = "\n".join(shown[parked:unread])
    assert "max_messages=18" in helps
    assert "brokerd group ls --parked" in helps


@pytest.mark.rule("MON-110")
def test_a_failing_destination_without_messages_is_explained_too() -> None:
    status = InstanceStatus(now=NOW, destinations=(replace(HELD, messages=0),))
    assert attention(status) == []
    (cause,) = failing(status, HELD.address)
    (finding,) = cause.findings
    assert finding.code == "D40"
    assert HELD.text in finding.text
    assert finding.commands == ("brokerd destination retry tcp://west:4022",)
    assert failing(status, "tcp://calm:4022") == []


@pytest.mark.rule("MON-110")
def test_a_wrapped_command_is_recognised_as_one() -> None:
    lines = page(WORSE, place(WORSE, "-8494"), width=64).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  brokerd dialog ls"))
    assert all(line.startswith("      ") for line in lines[at + 1 :])
    assert " ".join(lines[at:]).split() == [
        *("brokerd", "dialog", "ls", "--where", f"conversation_id={'a1' * 16}"),
        *("--broker", "main"),
    ]


@pytest.mark.rule("MON-110")
def test_nothing_is_wrong_only_where_no_item_concerns_a_line() -> None:
    lines = visible(make_board(Sample(WORSE, 20.0), None), Screen())
    fine = [
        one.name if isinstance(one, QueueLine) else getattr(one, "address", one)
        for at, one in enumerate(lines)
        if "nothing is wrong" in page(WORSE, at)
    ]
    assert fine == ["calm", "tcp://calm:4022"]
    board = make_board(Sample(WORSE, 20.0), None)
    at = next(n for n, one in enumerate(lines) if getattr(one, "name", "") == "calm")
    assert items_about(board, lines[at]) == []
    assert [one.sort for one in items_about(board, lines[at], {"far"})] == ["destination"]
    assert [one.sort for one in items_about(board, lines[at], {"shop"})] == ["dialogs"]
    queues = (queue("calm", retrying=2, last_error="boom"),)
    status = InstanceStatus(now=NOW, queues=queues)
    assert "boom" in page(status, 0)


@pytest.mark.rule("MON-111")
def test_the_cursor_begins_at_the_worst_line_and_has_a_mark() -> None:
    def marked(status: InstanceStatus, **screen: Any) -> list[str]:
        board = make_board(Sample(status, 20.0), None)
        text = text_of(make_frame(board, Screen(**screen), width=80, height=24))
        return [line for line in text.splitlines() if line.startswith(">")]

    assert marked(WORSE) == ["> store main is full: the disk is full"]
    retrying = replace(HELD, messages=0)
    calm = InstanceStatus(now=NOW, queues=(queue("calm"),), destinations=(retrying,))
    (line,) = marked(calm)
    assert line.startswith("> tcp://west:4022")
    assert marked(WORSE, cursor=-1) == []
    lines = visible(make_board(Sample(calm, 20.0), None), Screen())
    assert press(Screen(), "up", len(lines), worst(lines)).cursor == 0


@pytest.mark.rule("MON-112")
def test_free_lines_of_the_frame_hold_what_asks_for_attention() -> None:
    def frame(height: int) -> list[str]:
        board = make_board(Sample(WORSE, 20.0), None)
        return text_of(make_frame(board, Screen(), width=80, height=height)).splitlines()

    tall = frame(26)
    at = next(n for n, line in enumerate(tall) if line.startswith("- error -8494"))
    assert tall[at + 1].startswith("  shop to busy failed)")
    assert "not shown" not in tall[1]
    assert "- the TCP connection failed: refused (far at tcp://west:4022)" in tall
    exact = frame(24)
    for name in ("off", "stalled", "held", "busy", "calm", "tcp://west", "tcp://calm"):
        assert any(line.startswith(f"  {name}") for line in exact), name
    assert sum(line.startswith(("-", ">")) for line in exact) == len(concerns(WORSE))
    short = frame(20)
    assert "4 of them not shown" in short[1] or "3 of them not shown" in short[1]
    assert any(line.startswith("  stalled") for line in short)
    row = next(line for line in tall if line.startswith("  tcp://west"))
    assert row.split()[4:] == ["the", "TCP", "connection", "fai…"]


@pytest.mark.rule("MON-80")
@pytest.mark.parametrize("height", [10, 12, 15, 20, 24, 40])
def test_the_chosen_line_is_shown_at_any_height(height: int) -> None:
    board = make_board(Sample(WORSE, 20.0), None)
    for cursor, one in enumerate(visible(board, Screen())):
        rows = make_frame(board, Screen(cursor=cursor), width=80, height=height)
        text = " ".join(row[0].text for row in rows if row and row[0].style == "chosen")
        name = one.short if isinstance(one, Attention) else getattr(one, "name", "tcp://")
        assert text.startswith(f"> {name[:40]}"), (cursor, text)


@pytest.mark.rule("MON-112")
def test_the_why_column_has_the_reason_only() -> None:
    lines = text_of(make_frame(BOARD, Screen(), width=120, height=None)).splitlines()
    row = next(line for line in lines if line.startswith("  off"))
    assert row.endswith("  - manual, by root")
    row = next(line for line in lines if line.startswith("  tcp://west"))
    assert row.endswith("  - the TCP connection failed: refused")


@pytest.mark.rule("MON-112")
def test_a_filter_that_matches_nothing_says_so_below_the_headings() -> None:
    text = text_of(make_frame(BOARD, Screen(filter="zzz"), width=80, height=24))
    assert text.count("nothing matches zzz") == 2
    assert "queue (by pain)" in text
    assert "destination  " in text
    assert "ATTENTION: 4 to look at; 4 of them not shown" in text


@pytest.mark.rule("MON-112")
def test_activation_that_is_off_is_shown_and_help_explains_the_states() -> None:
    status = InstanceStatus(now=NOW, queues=(queue("q", max_readers=5, is_activation_off=True),))
    board = make_board(Sample(status, 20.0), None)
    rows = text_of(make_frame(board, Screen(), width=80, height=24)).splitlines()
    assert next(row for row in rows if row.startswith("> q")).split()[-2:] == ["off", "-"]
    text = text_of(make_frame(board, Screen(mode=Mode.HELP), width=80, height=24))
    for word in ("suppressed", "delayed", "idle", "online", "waiting", "since", "activation"):
        assert word in text
    assert "…" not in text


@pytest.mark.rule("MON-111")
def test_a_long_page_can_be_scrolled() -> None:
    screen = Screen(mode=Mode.HELP)
    first = text_of(make_frame(BOARD, screen, width=80, height=14))
    screen = press(screen, "page down", 3)
    second = text_of(make_frame(BOARD, screen, width=80, height=14))
    assert "page down: more" in first
    assert "since " in second
    assert "since " not in first
    assert press(screen, "x", 3) == Screen()


def test_a_board_of_nothing_is_shown_too() -> None:
    empty = Board(instance="x", state="starting", now=NOW, up=None, clients=0, peers=0, dialogs={},
                  attention=[], queues=[], destinations=[])  # fmt: skip
    text = text_of(make_frame(empty, Screen(), width=80, height=24))
    assert "OK: all is well" in text
    assert "no queue" in text
    assert text_of(make_frame(empty, Screen(mode=Mode.DETAIL), width=80, height=24))
