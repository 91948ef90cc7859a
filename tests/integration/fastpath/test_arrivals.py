"""The fast path of arrivals does what the general path does (`delivery.fastpath.arrivals`)."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.fastpath.arrivals import OrdinaryArrivals
from brokerd.protocol.frames import END, HEADERS, Ack, Fragment
from brokerd.protocol.headers import join
from tests.integration.fastpath.arrivals import FAR, arriving
from tests.integration.one_daemon import Daemon, play


def acknowledging(sequence: int) -> Ack:
    """The initiator has got that much, and has seen message 0 acknowledged."""
    return Ack(sequence, 0 if sequence >= 0 else -1, sequence, 0, FAR, True)


def _ack(out: Outgoing) -> Ack:
    """The acknowledgement that the dialog would send now."""
    broker_id = out.live.broker_id
    return out.acks.build(base_sequence=out.base_sequence, broker_id=broker_id)


def boxcars(daemon: Daemon) -> list[list[Fragment]]:
    """Ordinary messages of several dialogs, and between them all that are not ordinary."""

    def item(dialog: int, sequence: int, **fields: Any) -> Fragment:
        return arriving(daemon, dialog, sequence, **fields)

    return [
        [item(1, 0), item(2, 0), item(3, 0), item(4, 0)],
        [item(1, 1), item(1, 2), item(2, 1), item(1, 3), item(3, 1, body=b"")],
        [item(2, 3), item(2, 2), item(2, 4)],  # a gap that closes
        [item(1, 3), item(1, 4), item(1, 4), item(1, 5)],  # repeats
        [item(3, 2, ack=acknowledging(-1)), item(3, 3, ack=acknowledging(-1))],
        [
            item(3, 4, fragment=0, fragments=2, body=b"x" * 10),
            item(3, 4, fragment=1, fragments=2, body=b"y"),
            item(3, 5),
        ],
        [item(4, 1), item(4, 2, message_type="Answer"), item(4, 3)],  # wrong direction
        [
            item(3, 6, flags=HEADERS, body=bytes(join({"a": b"b"}, b"with"))),
            item(3, 7, flags=HEADERS, body=bytes(join({"a": b"b"}, None))),
            item(5, 0),
        ],
        [item(5, 1, flags=HEADERS, body=b"\xff\xffbad"), item(5, 2)],  # refused
        [item(2, 5), item(2, 6, flags=END, message_type="", body=b""), item(1, 6)],
    ]


def outcome(folder: Path) -> dict[str, Any]:
    """What the arrivals leave: messages as received, endpoints as stored, counters."""
    found: dict[str, Any] = {}

    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        for items in boxcars(daemon):
            dispatcher.arrived(list(items))
            await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.05)
        found["counters"] = (
            dispatcher.received,
            dispatcher.stored,
            dispatcher.duplicates,
            dispatcher.buffered,
            dict(dispatcher.dropped),
        )
        found["acks"] = sorted(
            (live.endpoint.conversation_id, _ack(live.outgoing))
            for live in daemon.broker.endpoints.all()
            if live.outgoing is not None
        )
        session = await daemon.session()
        messages = []
        async with session.transaction() as tx:
            while batch := await tx.receive("shop"):
                messages += [
                    (
                        *(one.conversation_id, one.sequence, one.message_type),
                        *(one.body, repr(one.headers), one.message_id),
                    )
                    for one in batch
                    if one.message_type != "urn:brokerd:Error"  # its id is drawn
                ]
        found["messages"] = sorted(messages, key=lambda one: one[:2])
        found["endpoints"] = sorted(
            (one.conversation_id, one.state, one.receive_sequence, one.receive_fragment)
            for one in await daemon.broker.store.endpoints.page(10)
        )
        await session.close()

    play(program, folder)
    return found


@pytest.mark.rule("DSP-3", "DLG-T9", "NBT-15")
def test_both_paths_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    add = OrdinaryArrivals.add

    def counting(run: OrdinaryArrivals, *args: Any) -> bool:
        taken.append(add(run, *args))
        return taken[-1]

    monkeypatch.setattr(OrdinaryArrivals, "add", counting)
    (tmp_path / "fast").mkdir()
    by_the_fast_path = outcome(tmp_path / "fast")
    assert sum(taken) == 12
    assert len(by_the_fast_path["messages"]) == 25
    monkeypatch.setattr(OrdinaryArrivals, "add", lambda *_args: False)
    (tmp_path / "general").mkdir()
    assert outcome(tmp_path / "general") == by_the_fast_path


@pytest.mark.rule("DLP-15", "REL-4")
def test_what_arrives_is_acknowledged_when_it_is_durable_and_not_before(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher, queue = daemon.instance.parts.dispatcher, daemon.broker.queues["shop"]
        dispatcher.arrived([arriving(daemon, 1, 0)])
        await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.05)
        (live,) = daemon.broker.endpoints.all()
        dispatcher.arrived([arriving(daemon, 1, 1)])
        assert live.endpoint.receive_sequence == 2
        assert live.outgoing is not None
        assert (live.outgoing.acks.stored_sequence, queue.ready_count) == (0, 1)
        await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.05)
        assert (live.outgoing.acks.stored_sequence, queue.ready_count) == (1, 2)

    play(program, tmp_path)


@pytest.mark.rule("DLP-15", "DLP-19", "REL-21")
def test_a_repeat_of_what_is_not_durable_yet_is_not_acknowledged(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        dispatcher = daemon.instance.parts.dispatcher
        gate = daemon.broker.store._pipeline._writer
        held: list[tuple[Any, Any]] = []
        with patch.object(gate, "submit", lambda *job: held.append(job)):
            dispatcher.arrived([arriving(daemon, 1, 0), arriving(daemon, 1, 1)])
            await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.05)
            dispatcher.arrived([arriving(daemon, 1, 0), arriving(daemon, 1, 1)])
            (live,) = daemon.broker.endpoints.all()
            assert live.endpoint.receive_sequence == 2
            assert live.outgoing is not None
            assert (live.outgoing.acks.stored_sequence, live.outgoing.acks.due_at) == (-1, None)
        for job in held:
            gate.submit(*job)
        await daemon.clock.sleep_until(daemon.clock.monotonic() + 0.05)
        assert live.outgoing.acks.stored_sequence == 1

    play(program, tmp_path)
