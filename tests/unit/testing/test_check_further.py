"""The further properties of the checker: each refuses a bad history and accepts its good twin."""

from pathlib import Path

import pytest

from brokerd.model import END_DIALOG, ERROR
from brokerd.testing.check import CLEAN, UNUSABLE, VIOLATED, check, main
from brokerd.testing.history import History, HistoryUnusable, Kind

INVOKE, OK, INFO = Kind.INVOKE, Kind.OK, Kind.INFO


class Told:
    """A hand-made history."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(self._tick)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def add(self, op: str, kind: Kind = INFO, **fields: object) -> None:
        self.history.add(op, kind, **fields)  # type: ignore[arg-type]

    def send(self, tx: int, uid: str) -> None:
        self.add("send", INVOKE, client="a", tx=tx, uid=uid, dialog="d", side="initiator")

    def sent(self, tx: int, *uids: str) -> None:
        for uid in uids:
            self.send(tx, uid)
        self.commit(tx, "a")

    def got(self, tx: int, uid: str, client: str = "b", **more: object) -> None:
        fields = {"client": client, "tx": tx, "queue": "q"}
        self.add("receive", INVOKE, **fields)
        self.add("receive", OK, **fields, uid=uid, dialog="d", side="target", **more)

    def ended(self, tx: int, client: str = "b", reason: str = END_DIALOG) -> None:
        self.add("receive", OK, client=client, tx=tx, queue="q")
        self.add("ended", OK, client=client, tx=tx, dialog="d", side="target", reason=reason)

    def commit(self, tx: int, client: str = "b") -> None:
        self.add("commit", INVOKE, client=client, tx=tx)
        self.add("commit", OK, client=client, tx=tx)

    def savepoint(self, tx: int, number: int, client: str = "b") -> None:
        self.add("savepoint", INVOKE, client=client, tx=tx, savepoint=number)

    def back_to(self, tx: int, number: int, client: str = "b") -> None:
        for kind in (INVOKE, OK):
            self.add("rollback_to", kind, client=client, tx=tx, savepoint=number)

    @property
    def rules(self) -> set[str]:
        return {found.rule for found in check(self.history, [])}


@pytest.fixture
def told() -> Told:
    return Told()


# CHK-6.


@pytest.mark.rule("CHK-6")
def test_an_end_is_told_once(told: Told) -> None:
    told.ended(1)
    told.commit(1)
    assert told.rules == set()
    told.ended(2)
    told.commit(2)
    assert told.rules == {"CHK-6"}


@pytest.mark.rule("CHK-6", "REL-11")
@pytest.mark.parametrize(
    ("reasons", "last", "rules"),
    [
        ((ERROR, END_DIALOG), 1, set()),
        ((ERROR, END_DIALOG), 2, {"CHK-6"}),
        ((END_DIALOG, ERROR), 1, {"CHK-6"}),
        ((ERROR, ERROR), 1, {"CHK-6"}),
    ],
)
def test_an_error_may_overtake_an_end_that_waits(
    told: Told, reasons: tuple[str, str], last: int, rules: set[str]
) -> None:
    told.ended(1, reason=reasons[0])
    if last > 1:
        told.commit(1)
    told.ended(last, reason=reasons[1])
    told.commit(last)
    assert told.rules == rules


@pytest.mark.rule("CHK-6")
@pytest.mark.parametrize("undone", ["rollback", "rollback_to"])
def test_an_end_that_was_put_back_is_told_again(told: Told, undone: str) -> None:
    told.savepoint(1, 1)
    told.ended(1)
    if undone == "rollback":
        told.add("rollback", OK, client="b", tx=1)
    else:
        told.back_to(1, 1)
        told.commit(1)
    told.ended(2)
    told.commit(2)
    assert told.rules == set()


@pytest.mark.rule("CHK-6")
@pytest.mark.parametrize(("first", "rules"), [("message", set()), ("end", {"CHK-6"})])
def test_nothing_comes_after_the_end(told: Told, first: str, rules: set[str]) -> None:
    told.sent(1, "m0")
    if first == "message":
        told.got(1, "m0")
        told.commit(1)
        told.ended(2)
        told.commit(2)
    else:
        told.ended(1)
        told.commit(1)
        told.got(2, "m0")
        told.commit(2)
    assert told.rules == rules


# CHK-7.


@pytest.mark.rule("CHK-7")
@pytest.mark.parametrize(("second", "rules"), [("west", set()), ("south", {"CHK-7"})])
def test_a_dialog_has_one_target(told: Told, second: str, rules: set[str]) -> None:
    told.sent(1, "m0", "m1")
    told.got(1, "m0", broker="west")
    told.commit(1)
    told.got(2, "m1", broker=second)
    told.commit(2)
    assert told.rules == rules


# CHK-8.


@pytest.mark.rule("CHK-8")
@pytest.mark.parametrize("op", ["ack", "fragment"])
@pytest.mark.parametrize(("stored", "rules"), [(4, set()), (3, {"CHK-8"})])
def test_only_what_is_durable_leaves(told: Told, op: str, stored: int, rules: set[str]) -> None:
    told.add(op, node="west", dialog="d", seq=4, stored=stored)
    assert told.rules == rules


# CHK-9.


@pytest.mark.rule("CHK-9")
def test_what_is_left_is_told(told: Told) -> None:
    assert told.rules == set()
    told.add("left", node="west", reason="2 endpoints are CO")
    assert told.rules == {"CHK-9"}


# CHK-10.


@pytest.mark.rule("CHK-10")
@pytest.mark.parametrize(
    ("when", "group", "rules"),
    [
        ("within", "g", {"CHK-10"}),
        ("within", "another", set()),
        ("after", "g", set()),
        ("rolled back", "g", set()),
    ],
)
def test_a_group_has_one_owner(told: Told, when: str, group: str, rules: set[str]) -> None:
    told.sent(1, "m0")
    told.add("send", INVOKE, client="a", tx=2, uid="n0", dialog="other", side="initiator")
    told.commit(2, "a")
    told.got(1, "m0", group="g")
    if when == "after":
        told.commit(1)
    told.add("receive", INVOKE, client="c", tx=2, queue="q")
    told.add("receive", OK, client="c", tx=2, uid="n0", dialog="other", side="target", group=group)
    if when == "rolled back":
        told.add("rollback", OK, client="c", tx=2)
        told.add("receive", OK, client="c", tx=3, uid="n0", dialog="other", side="target")
        told.commit(3, "c")
    else:
        told.commit(2, "c")
    if when != "after":
        told.commit(1)
    assert told.rules == rules


# CHK-11, CHK-12.


@pytest.mark.rule("CHK-11")
@pytest.mark.parametrize(("running", "rules"), [(0, set()), (3, set()), (4, {"CHK-11"})])
def test_readers_stay_under_the_ceiling(told: Told, running: int, rules: set[str]) -> None:
    told.add("readers", node="west", queue="q", seq=running, stored=3)
    assert told.rules == rules


@pytest.mark.rule("CHK-12")
@pytest.mark.parametrize(
    ("due", "latest", "rules"),
    [
        (1_000_000, 1_000_000, set()),
        (1_000_001, None, {"CHK-12"}),
        (0, 999_999, {"CHK-12"}),
        (0, None, set()),
    ],
)
def test_what_falls_due_is_on_time(
    told: Told, due: int, latest: int | None, rules: set[str]
) -> None:
    told.add("due", dialog="d", reason="the timer", seq=due, stored=latest)
    assert told.rules == rules


# Savepoints.


@pytest.mark.rule("GRP-21", "CHK-1", "CHK-4")
@pytest.mark.parametrize(("seen", "rules"), [("m0", set()), ("m1", {"CHK-1", "CHK-4"})])
def test_what_was_sent_since_the_savepoint_was_not(told: Told, seen: str, rules: set[str]) -> None:
    told.send(1, "m0")
    told.savepoint(1, 1, "a")
    told.send(1, "m1")
    told.back_to(1, 1, "a")
    told.commit(1, "a")
    told.got(1, "m0")
    if seen == "m1":
        told.got(1, "m1")
    told.commit(1)
    assert told.rules == rules


@pytest.mark.rule("GRP-21", "CHK-2", "CHK-3")
@pytest.mark.parametrize(("again", "rules"), [(True, set()), (False, {"CHK-2"})])
def test_what_was_received_since_the_savepoint_is_received_again(
    told: Told, again: bool, rules: set[str]
) -> None:
    told.sent(1, "m0")
    told.savepoint(1, 1)
    told.got(1, "m0")
    told.back_to(1, 1)
    if again:
        told.got(1, "m0")
    told.commit(1)
    assert told.rules == rules


@pytest.mark.rule("GRP-21", "CHK-3")
def test_what_was_received_before_the_savepoint_stays_received(told: Told) -> None:
    told.sent(1, "m0")
    told.got(1, "m0")
    told.savepoint(1, 1)
    told.back_to(1, 1)
    told.commit(1)
    assert told.rules == set()
    told.got(2, "m0")
    told.commit(2)
    assert "CHK-3" in told.rules


@pytest.mark.rule("GRP-21")
def test_a_savepoint_that_was_never_set_makes_the_history_unusable(told: Told) -> None:
    told.send(1, "m0")
    told.back_to(1, 7, "a")
    with pytest.raises(HistoryUnusable, match="savepoint 7 was never set"):
        check(told.history)


# Bad files.


@pytest.mark.rule("CHK-1")
@pytest.mark.parametrize(
    ("content", "told_of"),
    [
        (b"", "no events"),
        (b"hello\n", "line 1"),
        (b'{"i":0,"t":0,"op":"begin","kind":"ok"', "no events"),
        (b'{"i":0,"t":0,"op":"begin","kind":"maybe"}\n', "line 1"),
        (b'{"i":0,"t":0,"op":"begin","kind":"ok","colour":"red"}\n', "line 1"),
        (b'{"version":2}\n{"i":0,"t":0,"op":"left","kind":"info"}\n', "version 2"),
        (b"\xff\xfe\n", "line 1"),
        (b'{"i":1,"t":0,"op":"x","kind":"ok"}\n{"i":1,"t":0,"op":"x","kind":"ok"}\n', "rise"),
    ],
)
def test_a_file_that_is_no_history_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, told_of: str
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    assert main([str(path)]) == UNUSABLE
    error = capsys.readouterr().err
    assert error.startswith("unusable: ")
    assert str(path) in error
    assert told_of in error


@pytest.mark.rule("CHK-1")
def test_a_torn_last_line_is_left_out(
    tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    told.sent(1, "m0")
    path = tmp_path / "history.jsonl"
    told.history.write(path)
    path.write_bytes(path.read_bytes() + b'{"i":3,"t":9')
    assert main([str(path)]) == CLEAN
    assert "3 events" in capsys.readouterr().out
    assert main([str(path), "--drained"]) == VIOLATED
