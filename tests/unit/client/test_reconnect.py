"""Lost connections: what is repeated, what is asked, what is told (CLP-54 to CLP-72)."""

import asyncio
from datetime import timedelta
from random import Random
from types import NoneType

import pytest

from brokerd.client.address import Alternatives
from brokerd.client.connection import USUAL, WITH_OTHERS
from brokerd.client.dialer import reconnect_delay
from brokerd.client.link import MOST_LOSSES
from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from brokerd.errors import ConnectionLost, OutcomeUnknown, TransactionAborted
from brokerd.protocol.client_frames import (
    DRAINING,
    REPLACED,
    SILENCE_LIMIT,
    Hello,
    Ping,
    Request,
    encode_goodbye,
    encode_messages,
    encode_pong,
)
from brokerd.protocol.client_verbs import Send
from tests.unit.client.scripted import HANDLE, Daemon, MovedClock, message, open_session, turns


def bodies(daemon: Daemon) -> list[bytes | None]:
    return [verb.body for verb in daemon.applied if isinstance(verb, Send)]


@pytest.mark.rule("REL-2", "CLP-54", "CLP-51")
@pytest.mark.parametrize("phase", ["lose_on", "lose_after"])
async def test_an_unanswered_send_takes_effect_once(
    session: Session, daemon: Daemon, clock: MovedClock, phase: str
) -> None:
    setattr(daemon, phase, "transact")
    sent = asyncio.ensure_future(session.send(HANDLE, b"1"))
    await clock.advance(1)
    await sent
    assert len(daemon.peers) == 2
    assert bodies(daemon) == [b"1"]
    assert daemon.tokens == {0}


@pytest.mark.rule("REL-2", "CLP-54")
async def test_a_pipeline_is_repeated_in_order_with_its_tokens(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.hold = {"transact"}
    sent = [session.submit_send(HANDLE, b"%d" % i) for i in range(5)]
    await turns()
    daemon.tokens -= {1, 3}  # as if these two had not been committed when the connection broke
    daemon.applied = [daemon.applied[i] for i in (0, 2, 4)]
    daemon.down = True
    daemon.peer.lose()
    await turns()
    daemon.hold = set()
    sent += [session.submit_send(HANDLE, b"%d" % i) for i in range(5, 8)]
    await clock.advance(5)
    assert not any(each.done() for each in sent)
    daemon.down = False
    await clock.advance(6)
    await asyncio.gather(*sent)
    requests = [frame for frame in daemon.peer.frames if isinstance(frame, Request)]
    assert [request.args[0] for request in requests] == list(range(8))
    assert bodies(daemon) == [b"0", b"2", b"4", b"1", b"3", b"5", b"6", b"7"]


@pytest.mark.rule("CLP-54")
async def test_what_is_unanswered_is_repeated_or_asked_about_in_the_order_of_the_tokens(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    tx = session.transaction()
    await tx.get_group("q")
    await tx.send(HANDLE, b"1")
    await turns()
    daemon.hold = {"transact", "commit", "receive", "status"}
    asked: list[asyncio.Future[object]] = [
        asyncio.ensure_future(one)
        for one in (
            session.send(HANDLE, b"0"),
            tx.commit(),
            session.receive("q", autocommit=True),
            session.send(HANDLE, b"3"),
            session.status(),
        )
    ]
    await turns()
    assert [one.done() for one in asked] == [False] * 5
    daemon.hold = set()
    daemon.peer.lose()
    await clock.advance(1)
    repeated = [one for one in daemon.peer.frames if isinstance(one, Request)]
    assert [(one.verb, *one.args[:1]) for one in repeated] == [
        ("status",),
        ("transact", 0),
        ("tx_outcome", 1),
        ("tx_outcome", 2),
        ("transact", 3),
    ]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in outcomes] == [NoneType, NoneType, OutcomeUnknown, NoneType, dict]
    assert bodies(daemon) == [b"0", b"1", b"3"]


@pytest.mark.rule("CLP-54")
def test_delays_grow_up_to_5_s_and_half_of_each_is_drawn() -> None:
    rng = Random(1)
    for attempt, longest in [(0, 0.05), (1, 0.1), (4, 0.8), (6, 3.2), (7, 5.0), (10_000, 5.0)]:
        drawn = [reconnect_delay(attempt, rng) for _ in range(200)]
        assert longest / 2 <= min(drawn) < 0.55 * longest
        assert 0.95 * longest < max(drawn) <= longest


@pytest.mark.rule("CLP-10", "CLP-13")
async def test_the_client_id_stays(session: Session, daemon: Daemon, clock: MovedClock) -> None:
    daemon.peer.lose()
    await clock.advance(1)
    hellos = [peer.frames[0] for peer in daemon.peers]
    assert [isinstance(hello, Hello) and hello.client_id for hello in hellos] == [
        session.client_id
    ] * 2


@pytest.mark.rule("REL-2", "CLP-53", "CLP-54")
async def test_a_commit_that_took_effect_is_learned(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    daemon.lose_after = "commit"
    async with session.transaction() as tx:
        await tx.receive("q")
        await tx.send(HANDLE, b"reply")
        moving = asyncio.ensure_future(clock.advance(1))
    await moving
    assert daemon.asked[-1] == "tx_outcome"
    assert bodies(daemon) == [b"reply"]


@pytest.mark.rule("REL-2", "REL-3", "CLP-53")
async def test_a_commit_that_took_none_is_an_abort(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    daemon.lose_on = "commit"

    moving: asyncio.Future[None] | None = None

    async def block() -> None:
        nonlocal moving
        async with session.transaction() as tx:
            await tx.receive("q")
            moving = asyncio.ensure_future(clock.advance(1))

    with pytest.raises(TransactionAborted) as caught:
        await block()
    assert moving is not None
    await moving
    assert caught.value.retryable
    assert len(daemon.queues["q"]) == 1
    async with session.transaction() as tx:
        assert len(await tx.receive("q")) == 1
    assert daemon.tokens == {1}, "a token that was not committed is not used again"


@pytest.mark.rule("CLP-54")
async def test_the_question_for_an_outcome_survives_a_loss_too(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    daemon.lose_after = "commit"
    async with session.transaction() as tx:
        await tx.receive("q")
        moving = asyncio.ensure_future(clock.advance(10))
        asyncio.get_running_loop().call_soon(setattr, daemon, "lose_on", "tx_outcome")
    await moving
    assert daemon.asked.count("tx_outcome") == 2
    assert len(daemon.peers) == 3


@pytest.mark.rule("REL-2", "CLP-53")
async def test_an_outcome_that_nobody_knows_is_told(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    daemon.lose_on = "commit"
    daemon.forgets = True

    moving: asyncio.Future[None] | None = None

    async def block() -> None:
        nonlocal moving
        async with session.transaction() as tx:
            await tx.receive("q")
            moving = asyncio.ensure_future(clock.advance(1))

    with pytest.raises(OutcomeUnknown):
        await block()
    assert moving is not None
    await moving


@pytest.mark.rule("REL-3", "CLP-54")
@pytest.mark.parametrize("verb", ["begin", "receive", "send"])
async def test_an_open_transaction_is_lost_with_its_connection(
    session: Session, daemon: Daemon, clock: MovedClock, verb: str
) -> None:
    daemon.queues["q"] = [message(0)]
    daemon.lose_on = verb

    async def block() -> None:
        async with session.transaction() as tx:
            await tx.receive("q")
            await tx.send(HANDLE, b"reply")
            await turns()
            await tx.send(HANDLE, b"more")

    with pytest.raises(TransactionAborted) as caught:
        await block()
    assert caught.value.retryable
    await clock.advance(1)
    assert daemon.asked[-1] == verb, "nothing of it is ever said on another connection"
    assert len(daemon.queues["q"]) == 1
    await session.send(HANDLE, b"next")
    assert bodies(daemon) == [b"next"]


@pytest.mark.rule("REL-3")
async def test_an_old_transaction_never_joins_a_new_connection(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    tx = session.transaction()
    await tx.receive("q")
    daemon.peer.lose()
    await clock.advance(1)
    asked = len(daemon.asked)
    await tx.send(HANDLE, b"late")
    with pytest.raises(TransactionAborted):
        await tx.commit()
    await turns()
    assert len(daemon.asked) == asked


@pytest.mark.rule("RCV-16", "CLP-54")
async def test_a_waiting_autocommit_receive_is_asked_again(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    receiving = asyncio.ensure_future(session.receive("q", wait=FOREVER, autocommit=True))
    await turns()
    daemon.peer.lose()
    await clock.advance(1)
    assert not receiving.done()
    daemon.peer.arrive("q", message(0))
    assert len(await receiving) == 1


@pytest.mark.rule("RCV-18", "CLP-54")
async def test_the_wait_that_is_left_is_asked_for(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    receiving = asyncio.ensure_future(session.receive("q", wait=100, autocommit=True))
    await turns()
    await clock.advance(10)
    daemon.peer.lose()
    await clock.advance(1)
    ((_, asked),) = daemon.peer.waiting.values()
    assert asked.wait_ms is not None
    assert 88_000 < asked.wait_ms <= 90_000
    receiving.cancel()
    await turns()


@pytest.mark.rule("RCV-18")
async def test_a_long_wait_is_cut_into_several(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    receiving = asyncio.ensure_future(session.receive("q", wait=FOREVER, autocommit=True))
    await turns()
    ((number, (_, asked)),) = daemon.peer.waiting.items()
    assert asked.wait_ms == 240_000
    del daemon.peer.waiting[number]
    daemon.peer.say(encode_messages(number, []))
    await turns()
    assert not receiving.done()
    daemon.peer.arrive("q", message(0))
    assert len(await receiving) == 1


@pytest.mark.rule("RCV-16", "REL-2", "CLP-54")
@pytest.mark.parametrize(("phase", "found"), [("lose_on", 1), ("lose_after", 0)])
async def test_an_autocommit_receive_is_repeated_or_told_unknown(
    session: Session, daemon: Daemon, clock: MovedClock, phase: str, found: int
) -> None:
    daemon.queues["q"] = [message(0)]
    setattr(daemon, phase, "receive")
    receiving = asyncio.ensure_future(session.receive("q", autocommit=True))
    await clock.advance(1)
    if found:
        assert len(await receiving) == 1
        assert daemon.tokens == {1}, "the token of the first attempt is not used again"
    else:
        with pytest.raises(OutcomeUnknown):
            await receiving


@pytest.mark.rule("CLP-55", "REL-2")
@pytest.mark.parametrize("change", ["forgot", "other broker"])
@pytest.mark.parametrize("verb", ["transact", "commit", "receive"])
async def test_nothing_is_repeated_to_a_store_that_forgot(
    session: Session, daemon: Daemon, clock: MovedClock, change: str, verb: str
) -> None:
    await session.send(HANDLE, b"0")
    daemon.hold = {verb}
    sent: asyncio.Future[object]
    if verb == "transact":
        sent = asyncio.ensure_future(session.send(HANDLE, b"1"))
    elif verb == "receive":
        sent = asyncio.ensure_future(session.receive("q", autocommit=True))
    else:
        tx = session.transaction()
        await tx.get_group("q")
        await tx.send(HANDLE, b"1")
        sent = asyncio.ensure_future(tx.commit())
    await turns()
    asked = list(daemon.asked)
    if change == "forgot":
        daemon.forget()
    else:
        daemon.broker_id = b"z" * 16
    daemon.peer.lose()
    await clock.advance(1)
    with pytest.raises(OutcomeUnknown):
        await sent
    assert daemon.asked == asked, "neither repeated nor asked about"
    daemon.hold = set()
    await session.send(HANDLE, b"2")


@pytest.mark.rule("CLP-55", "REL-2")
@pytest.mark.parametrize(("hours", "repeats"), [(23, True), (25, False)])
async def test_nothing_is_repeated_to_a_store_that_may_have_forgotten_the_client(
    daemon: Daemon, clock: MovedClock, hours: int, repeats: bool
) -> None:
    """The first commit of a client: there is no answer by which it could tell."""
    session = await open_session(daemon, clock, retry=timedelta(days=3))
    daemon.lose_after = "transact"
    sent = session.submit_send(HANDLE, b"1")
    await turns()
    daemon.down = True
    daemon.forget()
    await clock.advance(1)
    clock._now += hours * 3600
    daemon.down = False
    await clock.advance(6)
    if repeats:
        await sent
    else:
        with pytest.raises(OutcomeUnknown, match="no longer knows"):
            await sent
    assert len(bodies(daemon)) == (2 if repeats else 1)
    await session.send(HANDLE, b"2")
    await session.close()


@pytest.mark.rule("CLP-55", "REL-2")
@pytest.mark.parametrize(("hours", "repeats"), [(23, True), (25, False)])
async def test_the_time_in_which_the_machine_was_suspended_counts(
    session: Session, daemon: Daemon, clock: MovedClock, hours: int, repeats: bool
) -> None:
    """The broker counts by UTC, so it has forgotten the client of a laptop that slept for a day."""
    daemon.lose_after = "transact"
    sent = session.submit_send(HANDLE, b"1")
    await turns()
    clock.suspended += hours * 3600
    daemon.forget()
    await clock.advance(1)
    if repeats:
        await sent
    else:
        with pytest.raises(OutcomeUnknown, match="no longer knows"):
            await sent
    assert len(bodies(daemon)) == (2 if repeats else 1)


@pytest.mark.rule("CLP-54", "CLP-55")
@pytest.mark.parametrize("verb", ["transact", "receive"])
async def test_a_first_commit_is_repeated_however_long_the_session_was_connected_before(
    session: Session, daemon: Daemon, clock: MovedClock, verb: str
) -> None:
    """The day counts from the commit: before it, there was nothing to forget."""
    clock._now += 25 * 3600
    daemon.queues["q"] = [message(0)]
    daemon.lose_on = verb
    sent: asyncio.Future[object]
    if verb == "transact":
        sent = asyncio.ensure_future(session.send(HANDLE, b"1"))
    else:
        sent = asyncio.ensure_future(session.receive("q", autocommit=True))
    await clock.advance(1)
    await sent
    assert len(daemon.peers) == 2


@pytest.mark.rule("CLP-56", "REL-2")
async def test_after_the_limit_everything_is_told(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.hold = {"transact", "status"}
    asked = session.submit_send(HANDLE, b"asked")
    status = asyncio.ensure_future(session.status())
    await turns()
    daemon.down = True
    daemon.peer.lose()
    await turns()
    unasked = session.submit_send(HANDLE, b"never asked")
    await clock.advance(50)
    assert not asked.done()
    await clock.advance(20)
    with pytest.raises(OutcomeUnknown):
        await asked
    for told in (unasked, status):
        with pytest.raises(ConnectionLost):
            await told
    with pytest.raises(ConnectionLost) as over:
        await session.send(HANDLE)
    assert not over.value.retryable
    assert "connect again" in over.value.hint
    with pytest.raises(ConnectionLost):
        async with session.transaction() as tx:
            await tx.receive("q")
    assert session.closed


@pytest.mark.rule("CLP-14")
async def test_a_replaced_client_does_not_come_back(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.peer.say(encode_goodbye(REPLACED))
    await turns()
    daemon.peer.lose()
    await clock.advance(10)
    assert len(daemon.peers) == 1
    with pytest.raises(ConnectionLost, match="taken this client id"):
        await session.send(HANDLE)


async def be_replaced(daemon: Daemon, clock: MovedClock) -> None:
    daemon.peer.say(encode_goodbye(REPLACED))
    await turns()
    daemon.peer.lose()
    await clock.advance(10)


@pytest.mark.rule("CLP-14")
@pytest.mark.parametrize(("seconds", "comes_back"), [(58, True), (61, False)])
async def test_a_hello_that_was_given_up_comes_within_a_minute_or_never(
    session: Session, daemon: Daemon, clock: MovedClock, seconds: float, comes_back: bool
) -> None:
    daemon.mute = True
    daemon.peer.lose()
    await clock.advance(1)
    daemon.peer.lose()
    daemon.mute = False
    await turns()
    await clock.advance(seconds)
    connections = len(daemon.peers)
    daemon.peer.say(encode_goodbye(REPLACED))
    await turns()
    daemon.peer.lose()
    await clock.advance(0.5)
    assert (len(daemon.peers) > connections) is comes_back


@pytest.mark.rule("CLP-14")
async def test_a_client_replaced_by_its_own_late_hello_comes_back_once(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.mute = True
    daemon.peer.lose()
    await clock.advance(1)
    daemon.peer.lose()  # its HELLO is on the way all the same
    daemon.mute = False
    await clock.advance(10)
    connections = len(daemon.peers)
    await be_replaced(daemon, clock)
    assert len(daemon.peers) == connections + 1
    await session.send(HANDLE)
    await be_replaced(daemon, clock)
    assert len(daemon.peers) == connections + 1
    with pytest.raises(ConnectionLost, match="taken this client id"):
        await session.send(HANDLE)


@pytest.mark.rule("CLP-71", "CLP-72")
async def test_a_draining_daemon_gets_nothing_new(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.queues["q"] = [message(0)]
    tx = session.transaction()
    await tx.receive("q")
    daemon.peer.say(encode_goodbye(DRAINING))
    await turns()
    sent = session.submit_send(HANDLE, b"later")
    await tx.send(HANDLE, b"in the block")
    await tx.commit()
    assert bodies(daemon) == [b"in the block"]
    await clock.advance(1)
    assert len(daemon.peers) == 2, "closed by the client, and opened anew"
    await sent
    assert bodies(daemon) == [b"in the block", b"later"]


@pytest.mark.rule("CLP-71")
async def test_a_request_not_taken_while_draining_is_repeated(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.mute = True
    sent = session.submit_send(HANDLE, b"crossed")
    daemon.peer.say(encode_goodbye(DRAINING))
    await turns()
    daemon.mute = False
    daemon.peer.lose()
    await clock.advance(1)
    await sent
    assert bodies(daemon) == [b"crossed"]


@pytest.mark.rule("CLP-60")
async def test_a_silent_daemon_is_asked_and_then_left(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.hold = {"transact"}
    sent = session.submit_send(HANDLE, b"1")
    await turns()
    await clock.advance(41)
    assert [type(frame) for frame in daemon.peer.frames].count(Ping) == 2
    assert len(daemon.peers) == 1
    daemon.mute = True
    await clock.advance(28)
    assert len(daemon.peers) == 1
    daemon.mute = False
    daemon.hold = set()
    await clock.advance(5)
    assert len(daemon.peers) == 2
    await sent
    assert bodies(daemon) == [b"1"]


@pytest.mark.rule("CLP-60", "REL-58")
async def test_a_silent_daemon_is_left_soon_where_there_is_another(
    daemon: Daemon, clock: MovedClock
) -> None:
    both = Alternatives([daemon.connector, daemon.connector])
    async with await open_session(daemon, clock, connector=both) as session:
        daemon.hold = {"transact"}
        sent = session.submit_send(HANDLE, b"1")
        await turns()
        daemon.mute = True
        await clock.advance(WITH_OTHERS.ping_after + WITH_OTHERS.pong_within - 0.5)
        assert len(daemon.peers) == 1
        daemon.mute, daemon.hold = False, set()
        await clock.advance(1)
        assert len(daemon.peers) == 2
        await sent
        assert bodies(daemon) == [b"1"]


@pytest.mark.rule("CLP-60")
async def test_a_client_that_waits_for_nothing_asks_nothing(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    await clock.advance(3600)
    assert not any(isinstance(frame, Ping) for frame in daemon.peer.frames)


@pytest.mark.rule("CLP-60", "CLP-61")
async def test_an_open_transaction_keeps_the_daemon_informed(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    tx = session.transaction()
    await tx.receive("q")
    await clock.advance(45)
    assert sum(isinstance(frame, Ping) for frame in daemon.peer.frames) == 2
    tx.rollback()


@pytest.mark.rule("CLP-60", "CLP-61")
async def test_an_answer_that_came_late_leaves_the_daemon_informed(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    tx = session.transaction()
    await tx.receive("q")
    written = len(daemon.peer.frames)
    await clock.advance(18)
    daemon.peer.say(encode_pong(0))
    await clock.advance(SILENCE_LIMIT - 18 - 1)
    assert [type(frame) for frame in daemon.peer.frames[written:]] == [Ping]
    assert len(daemon.peers) == 1
    tx.rollback()


async def test_a_daemon_that_accepts_and_says_nothing(daemon: Daemon, clock: MovedClock) -> None:
    daemon.mute = True
    connecting = asyncio.ensure_future(open_session(daemon, clock, wait=60))
    await clock.advance(USUAL.open_within - 1)
    assert not connecting.done()
    daemon.mute = False
    await clock.advance(2)
    await clock.advance(1)
    await (await connecting).close()


async def test_a_daemon_that_drops_whoever_it_welcomes_is_not_stormed(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    for _ in range(300):
        daemon.peer.lose()
        await clock.advance(0.1)
    assert len(daemon.peers) < 40


@pytest.mark.rule("REL-2")
async def test_a_cancelled_send_that_was_not_written_is_withdrawn(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.down = True
    daemon.peer.lose()
    await turns()
    first, second = session.submit_send(HANDLE, b"1"), session.submit_send(HANDLE, b"2")
    first.cancel()
    daemon.down = False
    await clock.advance(6)
    await second
    assert bodies(daemon) == [b"2"]


async def test_closing_while_offline_ends_at_once(daemon: Daemon, clock: MovedClock) -> None:
    session = await open_session(daemon, clock)
    daemon.down = True
    daemon.peer.lose()
    await turns()
    sent = session.submit_send(HANDLE)
    before = asyncio.all_tasks()
    await session.close()
    assert len(asyncio.all_tasks()) < len(before)
    with pytest.raises(ConnectionLost):
        await sent


async def test_no_task_is_left_after_close(daemon: Daemon, clock: MovedClock) -> None:
    session = await open_session(daemon, clock)
    daemon.hold = {"transact"}
    sent = session.submit_send(HANDLE)
    receiving = asyncio.ensure_future(session.receive("q", wait=FOREVER, autocommit=True))
    await turns()
    await session.close()
    await session.close()
    with pytest.raises(OutcomeUnknown):
        await sent
    with pytest.raises(ConnectionLost):
        await receiving
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.rule("CLP-120")
async def test_what_ends_every_connection_is_not_asked_for_ever(
    session: Session, daemon: Daemon, clock: MovedClock
) -> None:
    daemon.hold = {"transact", "status"}
    sent = asyncio.ensure_future(session.send(HANDLE, b"1"))
    asked = asyncio.ensure_future(session.status())
    for _ in range(MOST_LOSSES):
        await turns()
        assert not sent.done()
        assert not asked.done()
        daemon.peer.lose()
        await clock.advance(6)
    with pytest.raises(OutcomeUnknown, match="10 connections were lost over one transact") as told:
        await sent
    assert "log of the daemon" in told.value.hint
    with pytest.raises(ConnectionLost, match="10 connections were lost over one status"):
        await asked
    daemon.hold = set()
    await session.send(HANDLE, b"2")
    assert bodies(daemon)[-1] == b"2"
