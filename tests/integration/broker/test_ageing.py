"""Ageing on receive: nothing waits for ever behind higher levels, if the queue says so (PBT-16)."""

from pathlib import Path

import msgspec
import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.session import Session
from brokerd.errors import ObjectsRefused
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, raise_level, take, talk

TINY = WindowOptions(window_messages=4, window_bytes=4000, page_messages=2, locked_factor=1000)


async def dialog_of_level(daemon: Daemon, session: Session, level: int) -> bytes:
    """A dialog whose messages to the shop have that level."""
    handle = await talk(session, b"0")
    (first,) = await take(session, "shop")
    raise_level(daemon, first.handle, level)
    return handle


async def declare_ageing(daemon: Daemon, session: Session, ageing: object) -> list[object]:
    queues = [dict(one) for one in daemon.objects["queue"]]
    for one in queues:
        if one["name"] == "shop":
            one["receive_ageing"] = ageing
    daemon.objects = {**daemon.objects, "queue": queues}
    return await session.apply(daemon.objects)


async def seconds_until_the_low_one(daemon: Daemon, session: Session, longest: int) -> int | None:
    """One message of level 1 beside two of level 10 each second, of which one is received."""
    high = [await dialog_of_level(daemon, session, 10) for _ in range(8)]
    low = await dialog_of_level(daemon, session, 1)
    await session.send(high, b"high", "Ask")
    await session.send(low, b"low", "Ask")
    for second in range(longest):
        await session.send(high[2 * second % 8], b"high", "Ask")
        await session.send(high[(2 * second + 1) % 8], b"high", "Ask")
        if bodies(await take(session, "shop", 1)) == [b"low"]:
            return second
        await daemon.pass_time(1)
    return None


@pytest.mark.rule("PBT-16")
@pytest.mark.parametrize("window", [WindowOptions(), TINY])
@pytest.mark.parametrize(("ageing", "most"), [("10s", 100), ("1s", 15), ("off", None)])
def test_a_low_level_is_received_within_ten_intervals(
    tmp_path: Path, window: WindowOptions, ageing: str, most: int | None
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await declare_ageing(daemon, session, ageing)
        found = await seconds_until_the_low_one(daemon, session, most or 150)
        assert (found is None) == (most is None)
        await session.close()

    play(program, tmp_path, window=window)


@pytest.mark.rule("PBT-16", "OBJ-44")
@scenario
async def test_ageing_can_be_switched_while_messages_wait(daemon: Daemon, session: Session) -> None:
    high = [await dialog_of_level(daemon, session, 6) for _ in range(3)]
    low = await dialog_of_level(daemon, session, 5)
    await session.send(low, b"low", "Ask")
    await daemon.pass_time(30)
    await session.send(high, b"high", "Ask")
    assert bodies(await take(session, "shop")) == [b"high"]
    (change,) = await declare_ageing(daemon, session, "10s")
    assert isinstance(change, dict)
    assert "receive_ageing changes from off to 10s" in change["sentence"]
    assert bodies(await take(session, "shop")) == [b"low"]  # it has waited three intervals
    await session.send(low, b"low", "Ask")
    await daemon.pass_time(5)
    assert bodies(await take(session, "shop")) == [b"high"]  # and this one none yet
    await declare_ageing(daemon, session, "off")
    await daemon.pass_time(100)
    assert bodies(await take(session, "shop")) == [b"high"]
    assert bodies(await take(session, "shop")) == [b"low"]


@pytest.mark.rule("PBT-16", "REL-8")
@scenario
async def test_what_has_waited_counts_after_a_restart_too(daemon: Daemon, session: Session) -> None:
    await declare_ageing(daemon, session, "10s")
    high = await dialog_of_level(daemon, session, 8)
    low = await dialog_of_level(daemon, session, 2)
    await session.send(low, b"low", "Ask")
    await daemon.pass_time(65)
    await session.close()
    await daemon.restart()
    session = await daemon.session()
    assert daemon.broker.queues["shop"].queue.receive_ageing == 10_000_000
    await session.send(high, b"high", "Ask")
    assert bodies(await take(session, "shop")) == [b"low"]
    assert bodies(await take(session, "shop")) == [b"high"]
    await session.close()


@pytest.mark.rule("PBT-16")
@scenario
async def test_ageing_is_a_duration_or_off(daemon: Daemon, session: Session) -> None:
    for wrong in ("soon", "0s", "0.9ms", "86401s", "2d", -1, True):
        await fails(ObjectsRefused, declare_ageing(daemon, session, wrong))
    assert daemon.broker.queues["shop"].queue.receive_ageing is None
    for right, microseconds in (("1ms", 1000), ("1d", 86_400_000_000)):
        await declare_ageing(daemon, session, right)
        assert daemon.broker.queues["shop"].queue.receive_ageing == microseconds
    await declare_ageing(daemon, session, False)
    assert msgspec.structs.asdict(daemon.broker.queues["shop"].queue)["receive_ageing"] is None
