"""Bodies whose checks come to no verdict: refused to their sender, or parked where they arrive.

The check is a real one that gives up: a pattern that libxml2 abandons half-way."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from brokerd.checking.checker import Done, InProcess, Outcome, Pending, Verdict
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import CheckOverrun, CheckUnavailable, InvalidState, ValidationFailed
from brokerd.ids import parse
from brokerd.model import MessageType
from tests.integration.checking.patterns import GIVES_UP, pattern
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import given

WORD = pattern("(a|aa)+b")
FITS, UNFIT, NO_VERDICT = b"<a>ab</a>", b"<a>c</a>", GIVES_UP[1]
OTHER_BODY = b"<a>aab</a>"
TYPES: list[dict[str, Any]] = [
    {"name": "Word", "validation": "valid_xml", "schema": WORD},
    {"name": "OwnWord", "validation": "valid_xml", "schema": WORD, "validate_on_send": "on"},
    {"name": "Plain"},
]
LOOSE: list[dict[str, Any]] = [
    {"name": "Word"},
    {"name": "OwnWord", "validation": "valid_xml", "schema": WORD, "validate_on_send": "on"},
    {"name": "Plain"},
]


def objects(broker: str, types: list[dict[str, Any]], *services: str) -> dict[str, Any]:
    allowed = {one["name"]: "any" for one in types}
    return {
        "broker": {"name": broker, "default_encryption": "off"},
        "message_type": types,
        "contract": [{"name": "words", "types": allowed}],
        "queue": [{"name": one} for one in services],
        "service": [
            {"name": f"urn:{one}", "queue": one, "contracts": ["words"]} for one in services
        ],
    }


class Watched(InProcess):
    """Counts what it is asked, and can be out of order."""

    works = True

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        if self.works:
            return super().check(kind, body, done)
        done(Verdict(Outcome.UNAVAILABLE, "checks cannot be run: no memory"))
        return Pending(kind, body, done)


class Place:
    """A dialog may go from `main` to `far`, another broker, or to `near`, a queue of `main`."""

    def __init__(self, daemon: Daemon, main: Session, far: Session) -> None:
        self.daemon = daemon
        self.main = main
        self.far = far

    @property
    def checker(self) -> Watched:
        checker = self.daemon.instance.parts.checker
        assert isinstance(checker, Watched)
        return checker

    async def dialog(self, to: str = "urn:far", **more: Any) -> bytes:
        handle = await self.main.begin_dialog("urn:here", to, "words", **more)
        await self.main.send(handle, b"first", "Plain")
        await self.wait()
        return handle

    async def send(self, handle: bytes, *words: bytes) -> None:
        for one in words:
            await self.main.send(handle, one, "Word")
        await self.wait()

    async def wait(self, seconds: float = 1.0) -> None:
        await self.daemon.pass_time(seconds)

    async def received(self) -> list[bytes | None]:
        return [one.body for one in await self.messages()]

    async def messages(self) -> list[Message]:
        found: list[Message] = []
        while got := await self.far.receive("far", autocommit=True):
            found += got
        return found

    async def parked(self) -> list[dict[str, Any]]:
        return list(await self.far.view("parked_groups"))

    async def only_parked(self) -> bytes:
        (row,) = await self.parked()
        return parse(row["conversation_group_id"])

    async def status(self, handle: bytes) -> str:
        found = await self.main.transmission_status(handle)
        return f"{found.status_key} {found.transmission_status}"


@asynccontextmanager
async def two_brokers(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Place]]:
    """After the test no body and no verdict is kept."""
    async with await daemon.session() as main:
        await main.apply(objects("main", LOOSE, "here", "near"))
        await main.apply(objects("far", TYPES, "far"))
        checker = daemon.instance.parts.checker = Watched()
        for broker in daemon.instance.brokers.values():
            broker.inspection._checker = checker
        async with await daemon.session(broker="far") as far:
            yield (Place(daemon, main, far),)
            await daemon.pass_time(100)
            for broker in daemon.instance.brokers.values():
                assert len(broker.inspection) == 0


scenario = given(two_brokers)
in_pieces = given(two_brokers, fragment_size=1024, large_body=2048)


@pytest.mark.rule("OBJ-62", "REL-19")
@pytest.mark.parametrize("mode", ["disable_queue", "park"])
def test_an_arrival_without_a_verdict_parks_its_group_and_no_other(
    tmp_path: Path, mode: str
) -> None:
    @scenario
    async def run(place: Place) -> None:
        await place.far.alter("queue", "far", poison_mode=mode)
        bad, good = await place.dialog(), await place.dialog()
        await place.send(bad, FITS, NO_VERDICT)
        await place.send(good, FITS)
        assert await place.received() == [b"first", FITS]
        (row,) = await place.parked()
        assert row["park_reason"] == "check_overrun"
        assert row["last_error"] == "its check gave up: Internal error in XML Schema validation."
        assert (row["state"], row["messages"]) == ("parked", 3)
        assert await place.status(bad) == " "  # stored and acknowledged: it is not sent again
        assert place.checker.counts.overruns == {"gave_up": 1}

    run(tmp_path)


@pytest.mark.rule("OBJ-62")
@scenario
async def test_it_stays_parked_across_a_restart_and_is_not_checked_again(place: Place) -> None:
    await place.send(await place.dialog(), NO_VERDICT)
    group = await place.only_parked()
    await place.daemon.restart()
    checked = place.daemon.instance.parts.checker.counts.checked
    await place.wait(100)
    assert await place.only_parked() == group
    assert await place.received() == []
    assert place.daemon.instance.parts.checker.counts.checked == checked


@pytest.mark.rule("OBJ-62")
@pytest.mark.parametrize("way", [scenario, in_pieces], ids=["whole", "in_pieces"])
@pytest.mark.parametrize("opens", [True, False])
def test_it_may_open_its_dialog_and_may_arrive_in_pieces(
    tmp_path: Path, way: Callable[[Any], Callable[[Path], None]], opens: bool
) -> None:
    @way
    async def run(place: Place) -> None:
        handle: bytes = await place.main.begin_dialog("urn:here", "urn:far", "words")
        if not opens:
            handle = await place.dialog()
        await place.send(handle, NO_VERDICT)
        (row,) = await place.parked()
        assert (row["park_reason"], row["messages"]) == ("check_overrun", 1 if opens else 2)
        assert await place.received() == []
        assert await place.far.admin.discard_group(await place.only_parked()) == 1
        await place.send(handle, FITS)
        assert await place.received() == ([FITS] if opens else [b"first", FITS])

    run(tmp_path)


@pytest.mark.rule("OBJ-62", "CLP-117")
@pytest.mark.parametrize("restart", [False, True])
def test_an_operator_deals_with_that_very_message(tmp_path: Path, restart: bool) -> None:
    """Wherever it stands in its group; what lies before and behind it is kept."""

    @scenario
    async def run(place: Place) -> None:
        cases = {"discard": [], "edit": [OTHER_BODY], "release": [NO_VERDICT]}
        for how, in_its_place in cases.items():
            await place.send(await place.dialog(), FITS, NO_VERDICT, FITS)
            group = await place.only_parked()
            if restart:
                await place.daemon.restart()
            if how == "discard":
                assert await place.far.admin.discard_group(group) == 1
            elif how == "edit":
                for wrong in (NO_VERDICT, UNFIT):
                    with pytest.raises(ValidationFailed, match="nothing was changed"):
                        await place.far.admin.edit_group(group, wrong)
                await place.far.admin.edit_group(group, OTHER_BODY)
            else:
                await place.far.admin.release_group(group)
            assert await place.received() == [b"first", FITS, *in_its_place]
            await place.wait(100)
            assert await place.received() == [FITS]
            assert await place.parked() == []

    run(tmp_path)


@pytest.mark.rule("OBJ-62", "NBT-4")
@scenario
async def test_a_group_has_one_unchecked_message_at_a_time_and_others_wait_unchecked(
    place: Place,
) -> None:
    handle = await place.dialog()
    await place.send(handle, NO_VERDICT)
    await place.send(handle, NO_VERDICT)
    checked = place.checker.counts.checked
    await place.wait(300)
    assert place.checker.counts.checked == checked == 1
    assert await place.status(handle) == (
        "target_notice the target or a forwarder dropped it: check_overrun"
    )
    await place.far.admin.discard_group(await place.only_parked())
    await place.wait(100)
    assert place.checker.counts.checked == 2
    await place.far.admin.discard_group(await place.only_parked())
    await place.send(handle, FITS)
    assert await place.received() == [b"first", FITS]


@pytest.mark.rule("OBJ-62")
@scenario
async def test_those_asked_together_with_it_are_not_let_through(place: Place) -> None:
    handle = await place.dialog()
    async with place.main.transaction() as tx:
        for one in (FITS, NO_VERDICT, NO_VERDICT, FITS):
            await tx.send(handle, one, "Word")
    await place.wait()
    (row,) = await place.parked()
    assert row["messages"] == 3  # with the first one
    await place.far.admin.discard_group(parse(row["conversation_group_id"]))
    await place.wait(100)
    await place.far.admin.discard_group(await place.only_parked())
    await place.wait(100)
    assert await place.received() == [b"first", FITS, FITS]


@pytest.mark.rule("OBJ-62")
@scenario
async def test_a_reader_that_has_the_group_does_not_get_it_and_does_not_free_it(
    place: Place,
) -> None:
    for commits in (True, False):
        handle = await place.dialog()
        with suppress(ZeroDivisionError):
            async with place.far.transaction() as tx:
                (first,) = await tx.receive("far")
                assert first.body == b"first"
                await place.send(handle, NO_VERDICT)
                assert await tx.receive("far") == []
                if not commits:
                    raise ZeroDivisionError
        await place.wait(100)
        assert await place.received() == []
        await place.far.admin.discard_group(await place.only_parked())
        assert await place.received() == ([] if commits else [b"first"])


@pytest.mark.rule("OBJ-62", "GRP-18")
@scenario
async def test_its_conversation_cannot_be_moved_out_of_the_parked_group(place: Place) -> None:
    handle, _ = await place.dialog(), await place.dialog()
    one, other = await place.messages()
    await place.send(handle, NO_VERDICT)
    with pytest.raises(InvalidState, match="no verdict"):
        await place.far.move(one.handle, other.group_id)
    await place.far.admin.discard_group(await place.only_parked())
    await place.far.move(one.handle, other.group_id)


@pytest.mark.rule("OBJ-62", "SND-14", "PBT-14", "ERR-8430")
@scenario
async def test_a_send_that_waits_for_the_check_fails_and_nothing_is_sent(place: Place) -> None:
    await place.main.alter("message_type", "Word", validation="valid_xml", schema=WORD)
    near = await place.dialog("urn:near")
    far = await place.dialog()
    for handle, message_type in ((near, "Word"), (near, "OwnWord"), (far, "OwnWord")):
        with pytest.raises(CheckOverrun, match="gave up") as caught:
            await place.main.send(handle, NO_VERDICT, message_type)
        assert (caught.value.code, caught.value.ssb_code) == ("check_overrun", None)
        await place.main.send(handle, FITS, message_type)
    await place.wait()
    near_bodies = [one.body for one in await place.main.receive("near", autocommit=True)]
    assert near_bodies == [b"first", FITS, FITS]
    assert await place.received() == [b"first", FITS]


@pytest.mark.rule("OBJ-61", "NBT-4", "ERR-8430")
@scenario
async def test_while_checks_cannot_be_run_sends_fail_and_arrivals_stay_with_their_sender(
    place: Place,
) -> None:
    await place.main.alter("message_type", "Word", validation="valid_xml", schema=WORD)
    near, far = await place.dialog("urn:near"), await place.dialog()
    place.checker.works = False
    with pytest.raises(CheckUnavailable, match="no memory") as caught:
        await place.main.send(near, FITS, "Word")
    assert (caught.value.code, caught.value.ssb_code) == ("check_unavailable", None)
    await place.send(far, FITS)
    assert await place.status(far) == (
        "target_notice the target or a forwarder dropped it: check_unavailable"
    )
    assert await place.received() == [b"first"]
    place.checker.works = True
    await place.main.send(near, FITS, "Word")
    await place.wait(100)
    assert await place.received() == [FITS]
