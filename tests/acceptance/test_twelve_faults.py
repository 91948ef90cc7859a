"""Twelve faults of real daemons: what `status` and `doctor` say, here and at the other side.

Each fault is planted in a queue and service of its own, or mended at the end, so that all share a
pair of daemons and come in any order. The last command of a finding is run as it was printed.
"""

import ctypes
import json
import os
import platform
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import brokerd
from brokerd.cli.main import main
from tests.acceptance.hurried import Hurried, Thread

Capture = pytest.CaptureFixture[str]
NOBODY = 65534
SETRESUID = {"x86_64": 117, "aarch64": 147}
"""Number of the system call, by machine."""
DISK = ("--ignore", "D43")
"""The disk is that of who runs the tests."""
TYPES: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "message_type": [{"name": "Order"}],
    "contract": [
        {"name": "orders", "types": {"Order": "initiator"}},
        {"name": "returns", "types": {"Order": "initiator"}},
    ],
}
SHOP = {
    **TYPES,
    "queue": [{"name": "shop_q"}],
    "service": [{"name": "shop", "queue": "shop_q"}],
}


class Two:
    """A sender, `east`, and a receiver, `west`; `north` has a clock that is wrong."""

    def __init__(self, folder: Path) -> None:
        self.thread = Thread()
        self.east = Hurried(self.thread, folder, "east")
        self.west = Hurried(self.thread, folder, "west")
        self.north = Hurried(self.thread, folder, "north", skew=timedelta(minutes=20))
        self.all = (self.east, self.west, self.north)
        self.east.start(SHOP)
        self.west.start(TYPES)
        self.north.start(TYPES)
        for far in (self.west, self.north):
            with brokerd.sync.connect(far.address) as bk:
                bk.create("route", "back", service="shop", address=self.east.place)

    def stop(self) -> None:
        for one in self.all:
            one.stop()
        self.thread.stop()

    def serve(self, name: str, far: Hurried | None = None, **queue: Any) -> None:
        """Make a queue and a service of this name at a far daemon, and the route to it."""
        far = far or self.west
        with brokerd.sync.connect(far.address) as bk:
            bk.create("queue", f"{name}_q", **queue)
            bk.create("service", name, queue=f"{name}_q", contracts=["orders"])
        self.route(name, far)

    def route(self, name: str, far: Hurried) -> None:
        with brokerd.sync.connect(self.east.address) as bk:
            bk.create("route", f"to_{name}", service=name, address=far.place)

    def send(
        self, to: str, count: int = 1, *, contract: str = "orders", body: bytes = b"{}"
    ) -> None:
        """Send orders from the shop, each on a dialog of its own."""
        with brokerd.sync.connect(self.east.address) as bk:
            for _ in range(count):
                handle = bk.begin_dialog("shop", to, contract)
                bk.send(handle, body, "Order")

    def arrived(self, queue: str, count: int) -> None:
        """Wait until so many messages are in a queue of the west."""
        with brokerd.sync.connect(self.west.address) as bk:
            while True:
                (row,) = bk.view("service_queues", where={"name": queue})
                if row["ready_count"] >= count:
                    return
                self.thread.hurry(1)

    def cut(self) -> None:
        """Cut the way between east and west, whichever of the two connects."""

        async def act() -> None:
            self.west.relay.cut()
            self.east.relay.cut()

        self.thread.run(act())

    def heal(self) -> None:
        async def act() -> None:
            self.west.relay.heal()
            self.east.relay.heal()

        self.thread.run(act())

    def acknowledged(self, service: str) -> None:
        """Wait until all messages for a service have arrived."""
        with brokerd.sync.connect(self.east.address) as bk:
            while bk.view("transmission_queue", where={"to_service_name": service}):
                self.thread.hurry(1)

    def rolled_back(self, queue: str, times: int) -> None:
        """Let a reader of the west fail."""
        with brokerd.sync.connect(self.west.address) as bk:
            for _ in range(times):
                try:
                    with bk.transaction() as tx:
                        _fail(tx.receive(queue, wait=10))
                except ZeroDivisionError:
                    self.thread.hurry(2)


def _fail(messages: list[Any]) -> None:
    assert messages
    raise ZeroDivisionError("division by zero")


class Fault(NamedTuple):
    """One fault, and who has to name it."""

    name: str
    plant: Callable[[Two], None]
    code: str
    """Code of the finding."""
    said: str
    """A part of what `status` and the doctor say."""
    sender: bool
    receiver: bool
    """Whether the doctor at that side names it."""
    mends: bool = True
    """Whether the last command of the finding mends it from there."""
    heal: Callable[[Two], None] = lambda _two: None


def _unread(two: Two) -> None:
    two.serve("unread")
    two.send("unread", 3)
    two.arrived("unread_q", 3)
    two.thread.hurry(20)


def _refused(two: Two) -> None:
    with brokerd.sync.connect(two.west.address) as bk:
        bk.create("message_type", "Strict", validation="well_formed_json")
        bk.create("contract", "strict", types={"Strict": "initiator"})
        bk.create("queue", "strict_q")
        bk.create("service", "strict", queue="strict_q", contracts=["strict"])
    with brokerd.sync.connect(two.east.address) as bk:
        bk.create("message_type", "Strict")
        bk.create("contract", "strict", types={"Strict": "initiator"})
    two.route("strict", two.west)
    with brokerd.sync.connect(two.east.address) as bk:
        handle = bk.begin_dialog("shop", "strict", "strict")
        bk.send(handle, b"no json", "Strict")
    two.thread.hurry(5)


def _cut(two: Two) -> None:
    two.serve("cut")
    two.send("cut")
    two.arrived("cut_q", 1)
    two.cut()
    two.send("cut", 3)
    two.thread.hurry(15)


def _retried(two: Two) -> None:
    assert main(["destination", "retry", "all", *two.east.at]) == 0


def _heal(two: Two) -> None:
    two.heal()
    _retried(two)
    two.acknowledged("cut")


def _stopped(two: Two) -> None:
    two.serve("stopped", two.north)
    assert main(["endpoint", "stop", *two.north.at]) == 0
    two.send("stopped", 3)
    two.thread.hurry(15)


def _clock(two: Two) -> None:
    two.serve("late", two.north)
    two.send("late")
    two.acknowledged("late")


def _contract(two: Two) -> None:
    two.serve("picky")
    two.send("picky", 2, contract="returns")
    two.thread.hurry(5)


def _poisoned(two: Two) -> None:
    two.serve("poisoned")
    two.send("poisoned")
    two.arrived("poisoned_q", 1)
    two.rolled_back("poisoned_q", 5)
    two.send("poisoned", 2)
    two.thread.hurry(10)


def _inactive(two: Two) -> None:
    two.serve(
        "inactive", activation={"handler": "tests.integration.handlers:idle", "status": "off"}
    )
    two.send("inactive", 3)
    two.arrived("inactive_q", 3)
    two.thread.hurry(20)


def _full(two: Two) -> None:
    two.serve("full", max_messages=2)
    two.send("full", 2)
    two.arrived("full_q", 2)
    two.send("full", 3)
    two.thread.hurry(10)


def _mistyped(two: Two) -> None:
    two.serve("warehouse")
    two.send("wherehouse", 2)
    two.thread.hurry(15)


def _parked(two: Two) -> None:
    two.serve("parked", poison_mode="park", poison_threshold=1)
    two.send("parked", 2)
    two.arrived("parked_q", 2)
    two.rolled_back("parked_q", 2)


FAULTS = (
    Fault("nobody reads", _unread, "D45", "no program receives them", False, True, mends=False),
    Fault("bodies are refused", _refused, "D77", "-8430", True, True, mends=False),
    Fault("the cable is cut", _cut, "D78", "silent for", True, False, mends=False, heal=_heal),
    Fault("the far endpoint is stopped", _stopped, "D40", "wait", True, True, heal=_retried),
    Fault("a clock is wrong", _clock, "D47", "20min", True, True, mends=False),
    Fault("the contract is wrong", _contract, "D77", "returns", True, True, mends=False),
    Fault("a queue is off for poison", _poisoned, "D06", "5 rollbacks", True, True),
    Fault("activation is off", _inactive, "D45", "activation of the queue is off", False, True),
    Fault("a queue elsewhere is full", _full, "D78", "at its limit", True, True, mends=False),
    Fault("the service is mistyped", _mistyped, "D10", "wherehouse", True, False),
    Fault("a group is parked", _parked, "D44", "groups are parked", False, True),
)
"""The twelfth, a user who may not connect, has a test of its own."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    made = Two(tmp_path_factory.mktemp("faults"))
    yield made
    made.stop()


def doctor(capsys: Capture, one: Hurried, *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    main(["doctor", *words, *one.at, *DISK, "--json"])
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def verdict(capsys: Capture, one: Hurried) -> str:
    capsys.readouterr()
    assert main(["status", *one.at]) == 0
    return capsys.readouterr().out.partition("\n\n")[0]


def top(capsys: Capture, one: Hurried) -> str:
    """Return a frame of `top`, without its lines' ends."""
    capsys.readouterr()
    assert main(["top", "--once", "--every", "0.2", *one.at]) == 2
    return " ".join(capsys.readouterr().out.split())


def about(rows: list[dict[str, Any]], said: str) -> list[dict[str, Any]]:
    return [row for row in rows if said in f"{row['about']} {row['text']}"]


def test_the_table_keeps_the_promise() -> None:
    """With the user who may not connect, whom the doctor, status and the sender each name."""
    assert len(FAULTS) + 1 == 12
    assert sum(one.sender or one.receiver for one in FAULTS) + 1 >= 11
    assert sum(one.sender for one in FAULTS) + 1 >= 9


@pytest.mark.rule("MON-22", "MON-70", "MON-71", "MON-72", "MON-73", "MON-74")
@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_each_of_twelve_faults_is_named_by_status_and_doctor(
    two: Two, capsys: Capture, fault: Fault
) -> None:
    fault.plant(two)
    try:
        sides = [two.east] if fault.sender else []
        if fault.receiver:
            sides.append(two.north if fault.plant in (_stopped, _clock) else two.west)
        found: list[dict[str, Any]] = []
        for side in sides:
            rows = doctor(capsys, side)
            found += [row | {"side": side} for row in rows if _names(fault, side, two, row)]
            assert any(row["side"] is side for row in found), (side.name, rows)
            if not (fault.plant is _stopped and side is two.north):
                assert _said(fault, side, two) in verdict(capsys, side)
                assert _said(fault, side, two).removeprefix("wait for ") in top(capsys, side)
        for row in found:
            for command in row["commands"]:
                assert command.endswith(f"--address {row['side'].address}") or command == "date -u"
        if fault.mends:
            _mended(two, capsys, fault, [row for row in found if row["code"] in MENDING])
    finally:
        fault.heal(two)


MENDING = {"D06", "D45", "D22", "D10", "D44"}


def _said(fault: Fault, side: Hurried, two: Two) -> str:
    """What the side says of the fault: of a queue that is off, each sees its part."""
    if fault.plant is _poisoned and side is two.east:
        return "the target's queue is off"
    if fault.plant is _full and side is two.west:
        return "its limit is 2 messages"
    if fault.plant is _refused and side is two.west:
        return "not JSON"
    if fault.plant is _stopped and side is two.east:
        return f"wait for {two.north.place.lower()}"
    return fault.said


def _names(fault: Fault, side: Hurried, two: Two, row: dict[str, Any]) -> bool:
    if fault.plant is _stopped and side is two.north:
        return bool(row["code"] == "D22")
    if fault.plant is _stopped:
        return row["code"] in ("D40", "D37", "D78") and two.north.place.lower() in row["about"]
    code = fault.code
    if fault.plant is _poisoned and side is two.east:
        code = "D78"
    if fault.plant is _full and side is two.west:
        code = "D74"
    return row["code"] == code and _said(fault, side, two) in row["text"]


def _mended(two: Two, capsys: Capture, fault: Fault, rows: list[dict[str, Any]]) -> None:
    """Run the last command of the findings, as it was printed; then they are gone."""
    assert rows
    for row in rows:
        program, *words = shlex.split(row["commands"][-1])
        assert program == "brokerd"
        assert main(words) == 0
    two.thread.hurry(2)
    for row in rows:
        left = doctor(capsys, row["side"])
        assert (row["code"], row["about"]) not in [
            (one["code"], one["about"]) for one in left if _names(fault, row["side"], two, one)
        ]


@pytest.mark.rule("MON-75")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.skipif(platform.machine() not in SETRESUID, reason="the call has another number")
def test_a_user_who_may_not_connect_is_told_so_and_not_to_start_the_daemon(
    two: Two, capsys: Capture
) -> None:
    for command, status in (("status", 69), ("doctor", 3)):
        assert main([command, *two.east.at, "--json"]) in range(4)  # imports all that it needs
        capsys.readouterr()
        with as_nobody():
            assert main([command, *two.east.at]) == status
        said = "".join(capsys.readouterr())
        assert "may not use" in said
        assert str(two.east.folder) in said
        assert "belongs to root" in said
        assert "start it" not in said


@pytest.mark.rule("MON-115", "MON-114")
def test_an_endpoint_that_is_stopped_is_named_where_it_is_stopped(
    two: Two, capsys: Capture
) -> None:
    said = "the broker endpoint is stopped: no other instance gets in"
    assert main(["endpoint", "stop", *two.west.at]) == 0
    try:
        assert said in verdict(capsys, two.west)
        assert main(["top", "--once", "--every", "0.2", *two.west.at]) == 2
        shown = capsys.readouterr().out.splitlines()
        at = shown.index(f"- {said}")
        assert shown[at + 1] == f"    brokerd endpoint start {' '.join(two.west.at)}"
    finally:
        assert main(["endpoint", "start", *two.west.at]) == 0
    assert said not in verdict(capsys, two.west)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Let this thread alone act as a user without rights; the daemons' threads stay as they are."""
    libc, number = ctypes.CDLL(None, use_errno=True), SETRESUID[platform.machine()]
    assert libc.syscall(number, -1, NOBODY, -1) == 0
    try:
        assert os.geteuid() == NOBODY
        yield
    finally:
        assert libc.syscall(number, -1, 0, -1) == 0


@pytest.mark.rule("MON-70", "MON-71", "MON-72")
def test_a_pair_at_work_is_well(tmp_path: Path, capsys: Capture) -> None:
    """Under load, with a reader that keeps up, and one that is slow: neither is a fault."""
    pair = Two(tmp_path)
    try:
        pair.serve("busy")
        for _ in range(5):
            pair.send("busy", 40)
            pair.arrived("busy_q", 1)
            with brokerd.sync.connect(pair.west.address) as bk:
                for _ in range(4):  # it leaves most of them, and the rest wait for a long time
                    assert bk.receive("busy_q", 1, wait=10, autocommit=True)
                    pair.thread.hurry(6)
                    for side in (pair.east, pair.west):
                        assert doctor(capsys, side) == []
                        assert verdict(capsys, side).startswith("OK: all is well")
    finally:
        pair.stop()


@pytest.mark.rule("MON-71")
def test_a_cut_is_named_whenever_somebody_looks(tmp_path: Path, capsys: Capture) -> None:
    pair = Two(tmp_path)
    try:
        pair.serve("far")
        pair.send("far")
        pair.arrived("far_q", 1)
        pair.cut()
        pair.send("far", 3)
        pair.thread.hurry(12)
        for _ in range(12):
            assert "messages wait for" in verdict(capsys, pair.east)
            assert [row["code"] for row in doctor(capsys, pair.east)] in (["D78"], ["D40"], ["D37"])
            pair.thread.hurry(7)
    finally:
        pair.stop()
