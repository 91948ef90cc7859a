"""Bytes of the client protocol against a real session: order, failures, limits, endings (CLP)."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgpack
import pytest

from brokerd.ids import ClientId
from brokerd.protocol import client_frames as frames
from brokerd.sessions.open_transaction import OpenTx
from brokerd.sessions.responses import Responses
from brokerd.sessions.work import OneShot, Work
from tests.integration.one_daemon import Daemon, live_of, play
from tests.integration.scenarios import Collected, Program, alone, given
from tests.integration.sessions.raw_client import (
    I2,
    ME,
    H,
    Raw,
    ask,
    begin_dialog,
    client,
    done,
    frame,
    ready,
    received,
    send,
    stranger,
)


def scenario(**options: Any) -> Callable[[Program[Daemon]], Collected]:
    """Run the test against a daemon with these limits on sessions."""
    return given(alone, sessions=options, max_bytes=100_000)


async def holding(daemon: Daemon) -> Raw:
    """The same with a transaction, 1, that has sent `x` on it; requests 2 and 3 are used up."""
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"x"))
    assert await raw.answers() == [("done", 2, 3)]
    return raw


# Beginning and violations.


@pytest.mark.rule("CLP-5", "CLP-10")
@pytest.mark.parametrize(
    "data",
    [
        ask(1, None, "status"),
        frames.encode_ping(1),
        frames.encode_cancel(1),
        frame([1, 1, None, 7, []]),
        frame([9]),
        (5000).to_bytes(4, "big"),
        frame([0, 1, None, "hello", [1, ME, "main", {}]]),
        *(
            frames.encode_hello(ME, "main", {}) + more
            for more in (
                ask(1, None, "status"),
                frames.encode_ping(1),
                frames.encode_cancel(1),
                frame([1, 1, None, 7, []]),
                frames.encode_hello(ME, "main", {}),
            )
        ),
    ],
)
def test_before_welcome_only_hello_is_taken(tmp_path: Path, data: bytes) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await stranger(daemon)
        raw.write(data)
        assert await raw.answers() == [("goodbye", "protocol_error")]
        assert raw.is_gone()

    play(program, tmp_path)


@pytest.mark.rule("CLP-11")
@given(
    alone,
    sessions={"outstanding": 6, "transactions": 3, "waiting": 2},
    max_bytes=100_000,
    max_message=50_000,
)
async def test_welcome_says_who_answers_and_what_is_allowed(daemon: Daemon) -> None:
    raw = await stranger(daemon)
    raw.write(frames.encode_hello(ME, "main", {}))
    await daemon.pass_time(0.05)
    (welcome,) = raw.got
    assert isinstance(welcome, frames.Welcome)
    instance, broker = daemon.instance, daemon.broker
    assert welcome == frames.Welcome(
        request=0,
        version=1,
        instance="daemon",
        instance_id=instance.parts.instance_id,
        boot_id=instance.surroundings.boot_id,
        broker="main",
        broker_id=broker.broker_id,
        limits=frames.Limits(
            outstanding=6,
            frame=1 << 20,
            body=broker.options.max_message,
            transactions=3,
            waiting=2,
        ),
        highest_token=-1,
    )


@pytest.mark.rule("CLP-12")
@scenario()
async def test_a_hello_that_is_refused(daemon: Daemon) -> None:
    for hello, code in (
        ([9, ME, "main", {}], "bad_request"),
        ([1, ME, "none", {}], "object_not_found"),
        ([1, b"short", "main", {}], "bad_request"),
    ):
        raw = await stranger(daemon)
        raw.write(frame([0, 0, None, "hello", hello]), ask(1, None, "status"))
        assert await raw.answers() == [("failed", 0, code)]
        assert raw.is_gone()


@pytest.mark.rule("CLP-12")
@scenario(clients=2)
async def test_so_many_clients_and_no_more(daemon: Daemon) -> None:
    first = await client(daemon)
    await client(daemon, b"client id 000002")
    third = await stranger(daemon)
    third.write(frames.encode_hello(b"client id 000003", "main", {}))
    assert await third.answers() == [("failed", 0, "busy")]
    again = await client(daemon)  # replaces, so it is not one more
    assert await first.answers() == [("goodbye", "replaced")]
    again.transport.close()
    await daemon.pass_time(1)
    await client(daemon, b"client id 000003")


@pytest.mark.rule("CLP-5", "REL-18")
@pytest.mark.parametrize(
    "data",
    [
        frame([0, 9, None, "hello", [1, ME, "main", {}]]),
        ask(5, None, "status") + ask(5, None, "status"),
        frame([2, 9, b"x"]) + frame([2, 10, b"x"]),
        frame({"a": 1}),
        (2**27).to_bytes(4, "big"),
    ],
)
def test_a_violation_costs_the_connection_and_rolls_back(tmp_path: Path, data: bytes) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await ready(daemon)
        raw.write(ask(2, None, "transact", 1, [send(H, b"1")]), ask(3, 1, "begin"))
        raw.write(ask(4, 1, "receive", "shop"), data)
        answers = await raw.answers()
        assert answers[-1] == ("goodbye", "protocol_error")
        assert raw.is_gone()
        other = await client(daemon, b"client id 000002")
        assert await received(other, 1, 0) == [b"1"]

    play(program, tmp_path)


@pytest.mark.rule("CLP-6", "BI-R1", "BI-R6")
@scenario()
async def test_a_wrong_request_fails_and_the_connection_stays(daemon: Daemon) -> None:
    raw = await ready(daemon)
    wrong: list[tuple[int | None, str, list[object]]] = [
        (None, "nonsense", []),
        (None, "send", [H, "Ask", b"x"]),
        (None, "receive", ["shop", -1]),
        (None, "receive", ["shop", None, None, None, 5, 1]),
        (None, "transact", [2**63, [send(H, b"never")]]),
        (None, "transact", [1, []]),
    ]
    for number, (tx, verb, args) in enumerate(wrong, 2):
        raw.write(ask(number, tx, verb, *args))
        assert await raw.answers() == [("failed", number, "bad_request")]
    raw.write(ask(12, 1, "status"), ask(13, 7, "transact", 5, [send(H, b"never")]))
    assert await raw.answers() == [("failed", 12, "no_such_tx"), ("failed", 13, "no_such_tx")]
    raw.write(frames.encode_ping(4))
    assert await raw.answers() == [("pong", 4)]
    assert await received(raw, 20, 1) == []


@pytest.mark.rule("CLP-22")
@scenario()
async def test_a_span_beyond_the_bytes_of_a_transaction_is_refused(daemon: Daemon) -> None:
    raw = await ready(daemon)
    size = 100_000 + frames.FRAME_LIMIT
    for number, over in ((2, 0), (3, 1)):
        args = [H, "Ask", b"x" * (size + over)]
        packed = msgpack.packb(args)[: size + over]
        parts = [packed[at : at + 200_000] for at in range(0, len(packed), 200_000)]
        raw.write(*(frame([2, number, part]) for part in parts))
        raw.write(frame([1, number, None, "send", len(packed)]))
        code = "message_too_large" if over else "bad_request"
        assert await raw.answers(5) == [("failed", number, code)]


# Transactions.


@pytest.mark.rule("CLP-61", "MAN-1")
@scenario(transaction_idle=40.0)
async def test_what_was_held_back_uses_its_transaction_when_it_is_done(daemon: Daemon) -> None:
    raw, other = await ready(daemon), await client(daemon, b"client id 000002")
    raw.write(ask(2, None, "transact", 1, [send(H, b"opens")]), ask(3, 1, "begin"))
    other.write(
        ask(1, None, "transact", 0, [begin_dialog(I2)]),
        ask(2, 1, "begin"),
        ask(3, 1, "send", I2, "Ask", b"x"),
    )
    assert done(await raw.answers()) == [2, 3]
    assert done(await other.answers()) == [1, 2, 3]
    operator = await client(daemon, b"client id 000003")
    operator.write(ask(1, None, "error_conversations", "main", {"wait": 30.0}))
    await operator.answers()
    raw.write(ask(4, 1, "send", H, "Ask", b"held back"))
    await daemon.pass_time(15)
    assert await raw.answers() == []
    other.write(frames.encode_ping(1))
    await daemon.pass_time(15)
    assert await raw.answers() == [("done", 4)], "the operator has given up"
    raw.write(frames.encode_ping(1))
    await daemon.pass_time(20)
    raw.write(ask(5, 1, "commit", 5))
    assert await raw.answers() == [("pong", 1), ("done", 5)]


@pytest.mark.rule("CLP-6", "CLP-32")
@scenario()
async def test_a_begin_that_is_refused_opens_nothing(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin", 7), ask(3, 1, "send", H, "Ask", b"x"), ask(4, 2, "begin"))
    assert await raw.answers() == [
        ("failed", 2, "bad_request"),
        ("failed", 3, "no_such_tx"),
        ("done", 4),
    ]


@pytest.mark.rule("CLP-32", "REL-3", "BI-R3")
@scenario()
async def test_only_begin_opens_a_transaction_and_numbers_rise(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 5, "send", H, "Ask", b"x"), ask(3, 5, "begin"), ask(4, 5, "rollback"))
    raw.write(ask(5, 5, "commit", 1), ask(6, 4, "begin"), ask(7, 5, "begin"))
    raw.write(ask(8, 6, "begin"), ask(9, 6, "begin"), ask(10, 6, "commit", 1))
    raw.write(ask(11, 6, "send", H, "Ask", b"x"))
    codes = [one for one in await raw.answers() if one[0] == "failed"]
    assert codes == [("failed", number, "no_such_tx") for number in (2, 5, 6, 7, 9, 11)]
    assert await received(raw, 12, 2) == []


BAD = {
    "mistyped": lambda: ask(4, 1, "send", 7),
    "unknown verb": lambda: ask(4, 1, "nonsense"),
    "form": lambda: frame([1, 4, 1, "send"]),
    "too large": lambda: (
        frame([2, 4, bytes(1 << 20)[:-100]]) * 2 + frame([1, 4, 1, "send", 2097052])
    ),
    "too long": lambda: frame([1, 4, 1, "send", [H, "Ask", b"x" * (1 << 20)]]),
    "span": lambda: frame([2, 4, b"x"]) + frame([1, 4, 1, "send", 2]),
    "refused": lambda: ask(4, 1, "send", H, "Alone", b"x"),
    "nobody": lambda: ask(4, 1, "send", b"?" * 16, "Ask", b"x"),
}


@pytest.mark.rule("CLP-37", "CLP-6", "REL-3", "BI-R3")
@pytest.mark.parametrize("bad", list(BAD))
@pytest.mark.parametrize("blocked", [False, True], ids=["free", "behind a lock"])
def test_a_commit_behind_a_failed_request_commits_nothing(
    tmp_path: Path, bad: str, blocked: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await ready(daemon)
        other = await client(daemon, b"client id 000002")
        if blocked:
            other.write(ask(1, 1, "begin"), ask(2, 1, "send", H, "Ask", b"other"))
            assert await other.answers() == [("done", 1, 2)]
        raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"1"), BAD[bad]())
        raw.write(ask(5, 1, "send", H, "Ask", b"2"), ask(6, 1, "commit", 1))
        raw.write(ask(7, 1, "rollback"), ask(8, 2, "begin"), ask(9, 2, "rollback"))
        answers = await raw.answers()
        if blocked:
            other.write(ask(3, 1, "rollback"))
            await other.answers()
            answers += await raw.answers()
        failed = [one[1:] for one in answers if one[0] == "failed"]
        assert [number for number, _ in failed] == [4, 5, 6, 7]
        assert [code for _, code in failed[1:]] == [
            "transaction_aborted",
            "transaction_aborted",
            "no_such_tx",
        ]
        assert await received(raw, 10, 1) == []
        raw.write(ask(11, None, "tx_outcome", 1))
        assert await raw.answers() == [("answer", 11, "not_committed")]

    play(program, tmp_path)


@pytest.mark.rule("CLP-37")
@scenario()
async def test_after_a_failure_rollback_succeeds(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Alone", b"x"), ask(4, 1, "begin"))
    raw.write(ask(5, 1, "send", H, "Ask", b"x"), ask(6, 1, "rollback"))
    assert [one for one in await raw.answers() if one[0] != "done"] == [
        ("failed", 3, "not_in_contract"),
        ("failed", 4, "no_such_tx"),
        ("failed", 5, "transaction_aborted"),
    ]
    assert await received(raw, 7, 1) == []


@pytest.mark.rule("CLP-37", "CLP-61")
@scenario()
async def test_an_idle_transaction_is_given_up_and_answers_until_its_end(daemon: Daemon) -> None:
    raw = await holding(daemon)
    for number in range(5):
        await daemon.pass_time(15)
        raw.write(frames.encode_ping(number))  # alive, but PING is no use of it
    await raw.answers()
    raw.write(ask(4, 1, "send", H, "Ask", b"y"), ask(5, 1, "commit", 1), ask(6, 1, "rollback"))
    assert await raw.answers() == [
        ("failed", 4, "transaction_aborted"),
        ("failed", 5, "transaction_aborted"),
        ("failed", 6, "no_such_tx"),
    ]
    assert await received(raw, 7, 1) == []


@pytest.mark.rule("CLP-37", "CLP-61", "CLP-112")
@scenario()
async def test_no_savepoint_makes_a_transaction_usable_that_was_given_up(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "savepoint", 1), ask(4, 1, "send", H, "Ask", b"x"))
    for number in range(5):
        await daemon.pass_time(15)
        raw.write(frames.encode_ping(number))
    await raw.answers()
    raw.write(ask(5, 1, "rollback_to", 1), ask(6, 1, "send", H, "Ask", b"y"))
    raw.write(ask(7, 1, "commit", 1), ask(8, 1, "rollback"))
    assert await raw.answers() == [
        *(("failed", number, "transaction_aborted") for number in (5, 6, 7)),
        ("failed", 8, "no_such_tx"),
    ]
    assert await received(raw, 9, 1) == []


@pytest.mark.rule("CLP-113", "CLP-112")
@scenario()
async def test_a_savepoint_that_stands_is_gone_back_to_at_once(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "savepoint", 1), ask(4, 1, "send", H, "Ask", b"x"))
    raw.write(ask(5, 1, "receive", "desk", None, None, None, -1))
    assert done(await raw.answers()) == [2, 3, 4]
    raw.write(ask(6, 1, "rollback_to", 1))
    assert await raw.answers() == [("failed", 5, "transaction_aborted"), ("done", 6)]
    raw.write(ask(7, 1, "send", H, "Ask", b"y"), ask(8, 1, "commit", 1))
    assert done(await raw.answers()) == [7, 8]
    assert await received(raw, 9, 2) == [b"y"]


@pytest.mark.rule("CLP-113")
@scenario()
async def test_a_savepoint_that_does_not_stand_yet_waits_its_turn(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "receive", "desk", None, None, None, -1))
    raw.write(ask(4, 1, "savepoint", 1), ask(5, 1, "send", H, "Ask", b"x"))
    raw.write(ask(6, 1, "rollback_to", 1), ask(7, 1, "rollback_to", 2))
    assert await raw.answers() == []
    raw.write(frames.encode_cancel(3))
    answers = await raw.answers()
    assert done(answers) == [2, 4, 5, 6]
    assert [one[:2] for one in answers if one[0] != "done"] == [("answer", 3), ("failed", 7)]


@pytest.mark.rule("CLP-37", "CLP-61")
@scenario(transaction_age=100)
async def test_what_waits_in_a_transaction_that_is_too_old_is_answered(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"x"))
    raw.write(ask(4, 1, "receive", "spare", None, None, None, -1), ask(5, 1, "commit", 1))
    raw.write(ask(6, 2, "begin"), ask(7, 2, "receive", "spare", None, None, None, -1))
    for number in range(9):
        await daemon.pass_time(12)
        raw.write(frames.encode_ping(number))
    answers = [one for one in await raw.answers() if one[0] in ("failed", "answer")]
    assert answers == [("failed", 4, "transaction_aborted"), ("failed", 5, "transaction_aborted")]
    assert not daemon.broker.queues["spare"].waiting[1:]  # the other, without a lock, waits on
    raw.write(ask(8, 1, "rollback"), ask(9, None, "transact", 2, [send(H, b"free")]))
    assert await raw.answers() == [("failed", 8, "no_such_tx"), ("done", 9)]


@pytest.mark.rule("CLP-61")
@scenario()
async def test_silence_ends_a_connection_only_if_it_holds_something(daemon: Daemon) -> None:
    silent, holding = await client(daemon), await client(daemon, b"client id 000002")
    holding.write(ask(1, 1, "begin"))
    await daemon.pass_time(34)
    assert not holding.is_gone()
    await daemon.pass_time(6.5)  # 35 s, and the next pass of the table of periodic work
    assert ("goodbye", "idle") in await holding.answers()
    assert holding.is_gone()
    await daemon.pass_time(3600)
    assert not silent.is_gone()


@pytest.mark.rule("GRP-23", "CLP-61")
@scenario()
async def test_a_client_that_fell_silent_loses_its_locks_within_the_limit(daemon: Daemon) -> None:
    raw = await holding(daemon)
    live = live_of(daemon, H)
    holds = []
    for seconds in (30, 15):
        await daemon.pass_time(seconds)
        holds.append(live.group.holder is not None)
    assert holds == [True, False]
    assert raw.is_gone()
    other = await client(daemon, b"client id 000002")
    assert await received(other, 2, 1) == []


@pytest.mark.rule("CLP-30", "CLP-31")
@scenario()
async def test_transactions_wait_for_a_lock_in_the_order_they_were_written(
    daemon: Daemon,
) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"0"))
    for number in range(1, 4):
        body = [send(H, b"%d" % number)]
        if number == 2:  # one that has to look for something before it comes to the lock
            body.insert(0, begin_dialog(I2))
        raw.write(ask(3 + number, None, "transact", number, body))
    raw.write(ask(7, None, "tx_outcome", 1))
    answers = await raw.answers()
    assert ("answer", 7, "not_committed") in answers
    raw.write(ask(8, 1, "commit", 9))
    assert done(await raw.answers()) == [4, 5, 6, 8]
    assert await received(raw, 9, 10) == [b"0", b"1", b"2", b"3"]


@pytest.mark.rule("CLP-31")
def test_reading_an_endpoint_does_not_change_the_order(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await ready(daemon)
        raw.write(ask(2, None, "transact", 1, [begin_dialog(I2)]))
        await raw.answers()
        await daemon.restart()
        raw = await client(daemon)
        raw.write(ask(1, None, "transact", 2, [send(H, b"first")]))
        await raw.answers()  # H is in memory now, I2 is not
        both = ["send", [[H, I2], "Ask", b"both"]]
        raw.write(ask(2, None, "transact", 3, [both]), ask(3, None, "transact", 4, [send(H, b"2")]))
        assert done(await raw.answers()) == [2, 3]
        found = [await received(raw, 4 + number, 5 + number) for number in range(2)]
        assert sorted(found) == [[b"both"], [b"first", b"both", b"2"]]

    play(program, tmp_path)


# Tokens.


@pytest.mark.rule("CLP-50", "REL-2")
@scenario()
async def test_tokens_count_the_commits_of_a_client_and_may_be_decided_out_of_order(
    daemon: Daemon,
) -> None:
    raw = await ready(daemon)  # token 0 went with the dialog
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"slow"))
    await raw.answers()
    raw.write(ask(4, None, "transact", 2, [begin_dialog(I2), send(I2, b"quick")]))
    assert done(await raw.answers()) == [4]
    raw.write(ask(5, None, "tx_outcome", 1), ask(6, 1, "commit", 1))
    assert ("answer", 5, "not_committed") in await raw.answers()
    assert await received(raw, 7, 3) == [b"quick"]
    raw.write(*(ask(8 + token, None, "tx_outcome", token) for token in range(4)))
    assert await raw.answers() == [("answer", 8 + token, "committed") for token in range(4)]


@pytest.mark.rule("CLP-51", "REL-2")
@scenario()
async def test_a_token_that_was_committed_is_answered_and_has_no_effect(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, None, "transact", 1, [send(H, b"once")]))
    await raw.answers()
    raw.write(ask(3, None, "transact", 1, [send(H, b"twice")]))
    raw.write(ask(4, 1, "begin"), ask(5, 1, "send", H, "Ask", b"thrice"), ask(6, 1, "commit", 1))
    raw.write(ask(7, 1, "rollback"), ask(8, None, "receive", "shop", None, None, None, None, 1))
    answers = await raw.answers()
    assert done(answers) == [3, 4, 5, 6]
    assert ("failed", 7, "no_such_tx") in answers
    assert ("failed", 8, "outcome_unknown") in answers
    assert await received(raw, 9, 2) == [b"once"]


@pytest.mark.rule("CLP-51", "CLP-35", "CLP-53")
@scenario()
async def test_a_refused_token_and_an_empty_receive_use_none_up(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, None, "transact", 1, [send(H, b"1"), ["send", [H, "Alone", b"2"]]]))
    assert await raw.answers() == [("failed", 2, "not_in_contract")]
    assert await received(raw, 3, 1) == []
    raw.write(ask(4, None, "tx_outcome", 1), ask(5, None, "transact", 1, [send(H, b"3")]))
    assert await raw.answers() == [("answer", 4, "not_committed"), ("done", 5)]
    raw.write(ask(6, None, "tx_outcome", 1), ask(7, None, "transact", 3000, [send(H, b"4")]))
    raw.write(ask(8, None, "tx_outcome", 1))
    await raw.answers()
    raw.write(ask(9, None, "tx_outcome", 1), ask(10, None, "transact", 1, [send(H, b"5")]))
    assert await raw.answers() == [("answer", 9, "unknown"), ("failed", 10, "outcome_unknown")]


# Fencing.


@pytest.mark.rule("CLP-13", "REL-3")
@scenario()
async def test_a_second_hello_ends_the_first_connection(daemon: Daemon) -> None:
    older = await ready(daemon)
    older.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"open"))
    older.write(ask(4, 2, "begin"), ask(5, 2, "receive", "shop", None, None, None, -1))
    await older.answers()
    older.write(ask(6, None, "transact", 1, [send(I2, b"x")]))
    newer = await client(daemon)
    assert [one for one in await older.answers() if one[0] == "goodbye"] == [
        ("goodbye", "replaced")
    ]
    assert older.is_gone()
    assert not daemon.broker.queues["shop"].waiting
    newer.write(ask(1, None, "transact", 1, [send(H, b"new")]))
    assert await newer.answers() == [("done", 1)]
    assert await received(newer, 2, 2) == [b"new"]


@pytest.mark.rule("CLP-13", "REL-2")
@scenario()
async def test_welcome_waits_for_the_commits_of_the_older_connection(daemon: Daemon) -> None:
    older = await ready(daemon)
    newer = await stranger(daemon)
    gate = daemon.broker.store._pipeline._writer
    held: list[tuple[Any, Any]] = []
    with patch.object(gate, "submit", lambda *job: held.append(job)):
        older.write(ask(2, None, "transact", 1, [send(H, b"x")]))
        await daemon.pass_time(0.5)
        newer.write(frames.encode_hello(ME, "main", {}))
        assert await newer.answers() == []
    for job in held:
        gate.submit(*job)
    await daemon.pass_time(0.5)
    (welcome,) = newer.got
    assert isinstance(welcome, frames.Welcome)
    assert welcome.highest_token == 1


# What is told together.


@pytest.mark.rule("CLP-9")
@scenario()
async def test_begin_is_told_with_what_the_receive_behind_it_gets(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "receive", "shop", None, None, None, -1))
    raw.write(ask(4, 2, "begin"), ask(5, 2, "get_group", "shop", -1))
    assert await raw.answers() == []
    raw.write(ask(6, None, "transact", 1, [send(H, b"x")]))
    told, answer = await raw.answers()
    assert told == ("done", 2, 4, 6)
    assert answer[:2] == ("answer", 3)
    raw.write(ask(7, 3, "begin"), ask(8, 3, "receive", "shop", None, None, None, -1))
    assert await raw.answers() == []


@pytest.mark.rule("CLP-9", "CLP-30")
@scenario(outstanding=6)
async def test_a_client_near_its_limit_hears_of_begin_at_once(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"))
    assert await raw.answers() == [("done", 2)]
    raw.write(ask(3, 2, "begin"), ask(4, 2, "receive", "shop", None, None, None, -1))
    assert await raw.answers() == []
    raw.write(ask(5, 1, "receive", "desk", None, None, None, -1))
    assert await raw.answers() == [("done", 3)]


@pytest.mark.rule("CLP-9")
@scenario()
async def test_a_request_that_had_to_wait_is_told_when_it_is_done(daemon: Daemon) -> None:
    raw = await holding(daemon)
    other = await client(daemon, b"client id 000002")
    other.write(ask(1, 1, "begin"), ask(2, 1, "send", H, "Ask", b"y"))
    assert await other.answers() == [("done", 1)]
    raw.write(ask(4, 1, "commit", 1))
    assert await raw.answers() == [("done", 4)]
    assert await other.answers() == [("done", 2)]


@pytest.mark.rule("CLP-9")
@scenario()
async def test_who_receives_hears_before_those_who_sent(daemon: Daemon) -> None:
    raw = await ready(daemon)
    reader = await client(daemon, b"client id 000002")
    reader.write(ask(1, 1, "begin"), ask(2, 1, "receive", "shop", None, None, None, -1))
    assert await reader.answers() == []
    heard: list[Raw] = []
    feed = Raw.data_received

    def hears(self: Raw, data: bytes) -> None:
        heard.append(self)
        feed(self, data)

    with patch.object(Raw, "data_received", hears):
        raw.write(ask(2, None, "transact", 1, [send(H, b"x")]))
        await daemon.pass_time(0.5)
    assert heard == [reader, raw]


@pytest.mark.rule("CLP-9")
@scenario()
async def test_what_was_done_before_a_commit_is_told_with_it(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"x"), ask(4, 1, "commit", 1))
    raw.write(ask(5, 2, "begin"), ask(6, 2, "send", H, "Ask", b"y"), ask(7, 2, "commit", 2))
    assert await raw.answers() == [("done", 2, 3, 5, 6, 4, 7)]


@pytest.mark.rule("CLP-9")
@scenario()
async def test_a_send_before_a_receive_that_waits_is_told_at_once(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, None, "transact", 1, [send(H, b"which opens the dialog")]))
    assert await raw.answers() == [("done", 2)]
    raw.write(ask(3, 1, "begin"), ask(4, 1, "send", H, "Ask", b"x"))
    raw.write(ask(5, 1, "receive", "desk", None, None, None, -1))
    assert await raw.answers() == [("done", 3, 4)]


@pytest.mark.rule("CLP-9")
@pytest.mark.parametrize(
    "more",
    [
        [],
        [ask(3, 1, "send", H, "Ask", b"x")],
        [ask(3, 1, "send", H, "Ask", b"x"), ask(4, 1, "receive", "desk", None, None, None, -1)],
        [ask(3, 1, "rollback")],
        [ask(3, 2, "begin"), ask(4, 2, "receive", "shop", None, None, None, -1)],
    ],
)
def test_what_nothing_else_is_sure_to_tell_is_told_at_once(
    tmp_path: Path, more: list[bytes]
) -> None:
    async def program(daemon: Daemon) -> None:
        raw = await ready(daemon)
        raw.write(ask(2, 1, "begin"), *more)
        assert await raw.answers() == [("done", 2, 3) if more else ("done", 2)]

    play(program, tmp_path)


# Cancelling.


@pytest.mark.rule("CLP-40", "RCV-22")
@scenario()
async def test_cancel_ends_a_receive_that_waits_or_will(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 1, "receive", "shop", None, None, None, -1))
    raw.write(ask(4, 1, "receive", "shop", None, None, None, -1), ask(5, 1, "send", H, "Ask", b"x"))
    raw.write(frames.encode_cancel(4), frames.encode_cancel(77))
    assert await raw.answers() == []
    raw.write(frames.encode_cancel(3))
    assert await raw.answers() == [("done", 2), ("answer", 3, []), ("answer", 4, []), ("done", 5)]
    raw.write(frames.encode_cancel(3), ask(6, 1, "commit", 1))
    assert await raw.answers() == [("done", 6)]


@pytest.mark.rule("CLP-40", "RCV-22")
@pytest.mark.parametrize("what", ["receive", "get_group"])
def test_cancel_is_for_what_waits(tmp_path: Path, what: str) -> None:
    async def program(daemon: Daemon) -> None:
        raw, other = await ready(daemon), await client(daemon, b"client id 000002")
        nothing: object = None if what == "get_group" else []
        wait = [-1] if what == "get_group" else [None, None, None, -1]
        raw.write(
            ask(2, 1, "begin"), ask(3, 1, what, "shop", *wait), ask(4, 1, what, "shop", *wait)
        )
        raw.write(frames.encode_cancel(4), frames.encode_cancel(3))
        assert await raw.answers() == [
            *(("done", 2), ("answer", 3, nothing), ("answer", 4, nothing))
        ]
        other.write(ask(1, None, "transact", 0, [send(H, b"x")]))
        await other.answers()
        raw.write(ask(5, 1, what, "shop", *wait), frames.encode_cancel(5))
        (answer,) = await raw.answers()
        assert answer[:2] == ("answer", 5)
        assert answer[2] not in (nothing, []), "its answer was on its way"
        other.write(ask(2, 1, "begin"), ask(3, 1, what, "shop", *wait))
        assert await other.answers() == []
        other.write(frames.encode_cancel(3))
        assert await other.answers() == [("done", 2), ("answer", 3, nothing)]
        raw.write(ask(6, 1, "rollback"))
        await raw.answers()
        assert await received(raw, 7, 1) == [b"x"], "neither has a message or a lock"

    play(program, tmp_path)


# Limits.


@pytest.mark.rule("CLP-30", "CLP-37", "BI-R3")
@scenario(outstanding=4)
async def test_so_many_requests_outstanding_and_no_more(daemon: Daemon) -> None:
    raw = await ready(daemon)
    other = await client(daemon, b"client id 000002")
    other.write(ask(1, 1, "begin"), ask(2, 1, "send", H, "Ask", b"other"))
    await other.answers()
    raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"1"))
    await raw.answers()
    raw.write(*(ask(number, 1, "send", H, "Ask", b"2") for number in (4, 5, 6)))
    raw.write(ask(7, 1, "send", H, "Ask", b"3"), ask(8, 1, "commit", 1))
    assert await raw.answers() == [("failed", 7, "busy")]
    other.write(ask(3, 1, "rollback"))
    await other.answers()
    # 7 is missing, so nothing may be committed; but the commit has ended the transaction.
    assert await raw.answers() == [("done", 3, 4, 5, 6), ("failed", 8, "transaction_aborted")]
    raw.write(ask(9, 1, "commit", 1))
    assert await raw.answers() == [("failed", 9, "no_such_tx")]
    assert await received(raw, 10, 1) == []


@pytest.mark.rule("CLP-30")
@scenario(outstanding=1)
async def test_what_ends_a_transaction_is_taken_however_much_is_outstanding(
    daemon: Daemon,
) -> None:
    raw = await ready(daemon)
    other = await client(daemon, b"client id 000002")
    other.write(ask(1, 1, "begin"))
    await other.answers()
    other.write(ask(2, 1, "send", H, "Ask", b"other"))
    await other.answers()
    raw.write(ask(2, 1, "begin"))
    await raw.answers()
    raw.write(ask(3, 1, "send", H, "Ask", b"mine"), ask(4, 1, "rollback"))  # behind the other's
    await raw.answers(0)
    other.write(ask(3, 1, "commit", 1))
    await other.answers()
    assert 4 in done(await raw.answers())
    other.write(ask(4, None, "transact", 2, [send(H, b"again")]))
    assert done(await other.answers()) == [4]  # nobody holds the lock any more


@pytest.mark.rule("CLP-32", "BI-R7")
@scenario(transactions=2, waiting=1, waiting_in_all=2)
async def test_so_many_transactions_and_waiting_receives(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, 1, "begin"), ask(3, 2, "begin"), ask(4, 3, "begin"), ask(5, 3, "rollback"))
    answers = await raw.answers()
    assert done(answers) == [2, 3]
    assert answers[1:] == [("failed", 4, "busy"), ("failed", 5, "no_such_tx")]
    raw.write(ask(6, 1, "receive", "shop", None, None, None, -1))
    raw.write(ask(7, 2, "receive", "shop", None, None, None, -1))
    assert await raw.answers() == [("failed", 7, "busy")]
    raw.write(ask(8, 2, "rollback"), frames.encode_cancel(6), ask(9, 4, "begin"))
    assert await raw.answers() == [("done", 8), ("answer", 6, []), ("done", 9)]
    raw.write(ask(10, 4, "receive", "shop", None, None, None, 1000))
    assert await raw.answers(2) == [("answer", 10, [])]
    assert daemon.instance.parts.sessions.waiting == 0


@pytest.mark.rule("CLP-62")
@given(alone, max_bytes=16 << 20)
async def test_behind_4_mib_of_unsent_answers_no_request_is_taken(daemon: Daemon) -> None:
    raw = await ready(daemon)
    raw.write(ask(2, None, "transact", 1, [send(H, bytes(3 << 20))]))
    raw.write(ask(3, None, "transact", 2, [begin_dialog(I2), send(I2, bytes(5 << 20))]))
    assert done(await raw.answers(5)) == [2, 3]
    outcome, me = daemon.broker.store.token_outcome, ClientId(ME)
    raw.transport.pause_reading()
    raw.write(ask(4, 1, "begin"), ask(5, 1, "receive", "shop"))
    await daemon.pass_time(5)
    raw.write(ask(6, None, "transact", 3, [begin_dialog(b"another handle 3")]))
    await daemon.pass_time(5)
    assert outcome(me, 3) == "committed"
    raw.write(ask(7, 2, "begin"), ask(8, 2, "receive", "shop"))  # exceeds it alone
    await daemon.pass_time(5)
    raw.write(ask(9, None, "transact", 4, [begin_dialog(b"another handle 4")]))
    await daemon.pass_time(5)
    assert outcome(me, 4) == "not_committed"
    raw.transport.resume_reading()
    got = await raw.answers(5)
    sizes = [len(one[2][0][5]) for one in got if one[0] == "answer"]
    assert (sizes, done(got)) == ([3 << 20, 5 << 20], [4, 6, 7, 9])


# Failing and ending.


@pytest.mark.rule("REL-32", "CLP-120")
@pytest.mark.parametrize("work", [OneShot, OpenTx])
def test_an_error_nobody_foresaw_costs_one_connection(tmp_path: Path, work: type[Work]) -> None:
    async def program(daemon: Daemon) -> None:
        raw, other = await ready(daemon), await client(daemon, b"client id 000002")
        raw.write(ask(2, 1, "begin"), ask(3, 1, "send", H, "Ask", b"open"))
        await raw.answers()

        def broken(_self: Work) -> None:
            raise ZeroDivisionError

        with patch.object(work, "_run_until_blocked", broken):
            if work is OneShot:
                raw.write(ask(4, None, "transact", 1, [begin_dialog(I2)]))
            else:
                raw.write(ask(4, 1, "commit", 1))
            assert await raw.answers() == []
        assert raw.is_gone()
        logged = [fields for _, fields in daemon.log.lines if "exc_info" in fields]
        assert [type(fields["exc_info"]) for fields in logged] == [ZeroDivisionError]
        other.write(ask(1, None, "transact", 0, [send(H, b"free")]))
        assert await other.answers() == [("done", 1)]
        assert await received(other, 2, 1) == [b"free"]

    play(program, tmp_path)


@pytest.mark.rule("CLP-120", "REL-2", "REL-32")
@pytest.mark.parametrize("way", ["express", "transact", "commit", "receive"])
def test_an_answer_that_fails_after_the_commit_costs_nobody_else(tmp_path: Path, way: str) -> None:
    async def program(daemon: Daemon) -> None:
        raw, other = await ready(daemon), await client(daemon, b"client id 000002")
        other.write(ask(1, None, "transact", 0, [send(H, b"before"), send(H, b"all")]))
        assert await other.answers() == [("done", 1)]
        mine = {
            "express": [ask(5, None, "transact", 1, [send(H, b"sent")])],
            "transact": [ask(5, None, "transact", 1, [send(H, b"sent"), send(H, b"more")])],
            "commit": [
                ask(2, 1, "begin"),
                ask(3, 1, "send", H, "Ask", b"x"),
                ask(5, 1, "commit", 1),
            ],
            "receive": [ask(5, None, "receive", "shop", 1, None, None, None, 1)],
        }[way]
        done_all, answer = Responses.done_all, Responses.answer

        def breaks(whole: Callable[..., None]) -> Callable[..., None]:
            def told(self: Any, request: Any, *rest: Any) -> None:
                many = request if isinstance(request, tuple | list) else (request,)
                if self._client.client_id == ME and 5 in many:
                    raise ZeroDivisionError
                whole(self, request, *rest)

            return told

        with (
            patch.object(Responses, "done_all", breaks(done_all)),
            patch.object(Responses, "answer", breaks(answer)),
        ):
            raw.write(*mine)
            other.write(ask(2, None, "transact", 1, [send(H, b"other")]))
            assert ("failed", 5, "outcome_unknown") in await raw.answers()
            assert await other.answers() == [("done", 2)]
        assert not raw.is_gone()
        daemon.check()
        logged = [fields for _, fields in daemon.log.lines if "exc_info" in fields]
        assert [type(fields["exc_info"]) for fields in logged] == [ZeroDivisionError]
        raw.write(ask(9, None, "tx_outcome", 1))
        assert await raw.answers() == [("answer", 9, "committed")]

    play(program, tmp_path)


@pytest.mark.rule("CLP-70", "CLP-71", "REL-28")
@scenario()
async def test_draining_lets_open_transactions_finish(daemon: Daemon) -> None:
    raw, idle = await holding(daemon), await client(daemon, b"client id 000002")
    stopping = asyncio.create_task(daemon.instance.stop(timedelta(seconds=10)))
    assert await idle.answers() == [("goodbye", "draining")]
    assert idle.is_gone()
    assert await raw.answers(0.0) == [("goodbye", "draining")]
    raw.write(ask(4, 2, "begin"), ask(5, 2, "send", H, "Ask", b"y"), ask(6, None, "status"))
    raw.write(ask(7, 1, "send", H, "Ask", b"z"), ask(8, 1, "commit", 1))
    assert done(await raw.answers()) == [7, 8]
    assert raw.is_gone()
    await stopping
    await daemon.start()
    raw = await client(daemon)
    assert await received(raw, 1, 2) == [b"x", b"z"]


@pytest.mark.rule("CLP-71", "CLP-72")
@scenario()
async def test_draining_ends_with_the_rollback_of_what_was_open(daemon: Daemon) -> None:
    raw = await holding(daemon)
    stopping = asyncio.create_task(daemon.instance.stop(timedelta(seconds=10)))
    assert await raw.answers() == [("goodbye", "draining")]
    raw.write(ask(4, 1, "rollback"))
    assert await raw.answers() == [("done", 4)]
    assert raw.is_gone()
    await stopping
    await daemon.start()


@pytest.mark.rule("CLP-71", "CLP-9")
@scenario()
async def test_draining_waits_for_the_answers_that_are_owed(daemon: Daemon) -> None:
    raw = await ready(daemon)
    gate = daemon.broker.store._pipeline._writer
    held: list[tuple[Any, Any]] = []
    with patch.object(gate, "submit", lambda *job: held.append(job)):
        raw.write(ask(2, None, "transact", 1, [send(H, b"x")]))
        raw.write(ask(3, 1, "begin"), ask(4, 1, "send", H, "Ask", b"y"), ask(5, 1, "commit", 2))
        await daemon.pass_time(0.5)
        stopping = asyncio.create_task(daemon.instance.stop(timedelta(seconds=10)))
        assert await raw.answers() == [("done", 3, 4), ("goodbye", "draining")]
        assert not raw.is_gone()
    for job in held:
        gate.submit(*job)
    assert done(await raw.answers()) == [2, 5]
    assert raw.is_gone()
    await stopping
    await daemon.start()


@pytest.mark.rule("CLP-71", "REL-28")
@scenario()
async def test_draining_ends_at_its_limit(daemon: Daemon) -> None:
    raw = await holding(daemon)
    began = daemon.loop.time()
    await daemon.instance.stop(timedelta(seconds=10))
    assert 10 <= daemon.loop.time() - began < 12
    await daemon.pass_time(1)
    assert raw.is_gone()
    await daemon.start()
    assert await received(await client(daemon), 1, 1) == []
