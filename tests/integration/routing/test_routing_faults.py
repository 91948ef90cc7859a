"""Routes that an operator gets wrong: what is sent stays, says why, and makes no storm."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.config.settings import Settings
from brokerd.testing.rig import BROKER, PORT, Rig
from tests.integration.one_daemon import Daemon, play
from tests.integration.shorthand import take

NAMES = ("one", "two", "three")


class Ring(Rig):
    """Three instances that forward, each to the next."""

    def settings(self, name: str) -> Settings:
        usual = super().settings(name)
        assert usual.endpoint is not None
        endpoint = msgspec.structs.replace(usual.endpoint, forwarding=True)
        return msgspec.structs.replace(usual, endpoint=endpoint)


async def _send_into(rig: Ring, ways: dict[str, str]) -> bytes:
    for name, following in ways.items():
        wanted: dict[str, object] = {
            "broker": {"name": BROKER},
            "instance_route": [
                {"name": "on", "service": "lost", "address": f"TCP://{following}:{PORT}"}
            ],
        }
        await rig.instances[name].session.apply(wanted, ensure=True)
        if name != "one":  # who is dropped can be told of it
            await rig.instances[name].session.create(
                "instance_route", "home", service="one", address=f"TCP://one:{PORT}"
            )
    session = rig.instances["one"].session
    await session.create("route", "out", service="lost", address=f"TCP://two:{PORT}")
    handle = await session.begin_dialog("one", "lost", "DEFAULT")
    await session.send(handle, b"kept", "DEFAULT")
    return handle


def _forwarded(rig: Ring) -> int:
    return sum(one.instance.parts.forwarder.report.sent for one in rig.instances.values())


@pytest.mark.rule("RTE-40", "FWD-6", "NBT-6")
def test_a_message_in_a_ring_of_three_runs_out_of_hops_and_its_sender_is_told(
    tmp_path: Path,
) -> None:
    rig = Ring(tmp_path)

    async def program() -> None:
        await rig.add(*NAMES)
        ring = dict(zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True))
        handle = await _send_into(rig, ring)
        await rig.clock.advance(2.0)
        session = rig.instances["one"].session
        status = await session.transmission_status(handle)
        assert (status.status_key, status.pending) == ("target_notice", 1)
        assert "hops" in status.transmission_status
        once = _forwarded(rig)
        assert 0 < once <= 10
        await rig.clock.advance(600.0)  # it is sent again at growing intervals, 64 s at most
        assert _forwarded(rig) <= 20 * once

        for name in NAMES[1:]:
            await rig.instances[name].session.drop("instance_route", "on")
        await rig.instances["three"].session.apply(
            {
                "broker": {"name": BROKER},
                "queue": [{"name": "lost_q"}],
                "service": [{"name": "lost", "queue": "lost_q", "contracts": ["DEFAULT"]}],
                "route": [{"name": "back", "service": "one", "address": f"TCP://one:{PORT}"}],
            },
            ensure=True,
        )
        await session.alter("route", "out", address=f"TCP://three:{PORT}")
        await rig.clock.advance(70.0)
        (message,) = await take(rig.instances["three"].session, "lost_q")
        assert message.body == b"kept"

    try:
        rig.run(program())
    finally:
        rig.close()


@pytest.mark.rule("RTE-41", "RTE-43")
def test_a_route_of_an_instance_to_itself_ends_with_the_hops(tmp_path: Path) -> None:
    rig = Ring(tmp_path)

    async def program() -> None:
        await rig.add(*NAMES)
        handle = await _send_into(rig, {"two": "two"})
        await rig.clock.advance(200.0)
        status = await rig.instances["one"].session.transmission_status(handle)
        assert (status.status_key, status.pending) == ("target_notice", 1)
        assert "hops" in status.transmission_status
        assert _forwarded(rig) == 0

    try:
        rig.run(program())
    finally:
        rig.close()


@pytest.mark.rule("NBT-18", "RTE-32")
def test_a_service_that_two_brokers_have_is_one_target_and_one_warning(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        for name in ("twin_b", "twin_a"):
            wanted: dict[str, Any] = {
                "broker": {"name": name, "default_encryption": "off"},
                "queue": [{"name": "q"}],
                "service": [{"name": "urn:twin", "queue": "q", "contracts": ["DEFAULT"]}],
            }
            async with await daemon.session() as admin:
                await admin.apply(wanted)
        session = await daemon.session()
        for _ in range(100):
            handle = await session.begin_dialog("urn:desk", "urn:twin", "DEFAULT")
            await session.send(handle, b"1", "DEFAULT")
        await daemon.pass_time(1)
        brokers = daemon.instance.brokers
        assert [len(list(brokers[one].endpoints.all())) for one in ("twin_a", "twin_b")] == [100, 0]
        said = [
            fields
            for event, fields in daemon.log.lines
            if event == "broker.message_classify" and fields["subclass"] == "ambiguous"
        ]
        assert [(one["to_service"], one["candidates"], one["chosen"]) for one in said] == [
            ("urn:twin", "twin_a, twin_b", "twin_a")
        ]
        await session.close()

    play(program, tmp_path)
