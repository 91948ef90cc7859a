"""Certificates that expire are announced in time, everywhere an operator looks (NBT-21)."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from brokerd.admin.doctor.checks import Seen, examine
from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.maintenance.certificate_expiry import DAY
from brokerd.security.certificates import DAYS, make_certificate, show_id
from brokerd.security.credentials import Kind, Purpose
from brokerd.telemetry.logs import CERTIFICATE
from brokerd.telemetry.metric_names import Scope, described
from brokerd.telemetry.status import InstanceStatus, concerns
from tests.integration.one_daemon import START, Daemon
from tests.integration.scenarios import alone, given

TRANSPORT = Purpose.TRANSPORT
by_itself = given(alone)
SLOW_PASS = 30.0
TICK = 6.0


async def add_peer(daemon: Daemon, *, days: int) -> None:
    made, _ = make_certificate("west", now=daemon.clock.utc(), days=days)
    await daemon.instance.parts.credential_store.add_principal(
        Kind.PEER, "west", (TRANSPORT, made), actor="alice"
    )


async def at_day(daemon: Daemon, days: float) -> None:
    """Boot the machine again, so many days after START."""
    await daemon.stop()
    at = Instant(START + int(days * DAY))
    daemon.clock.jump(timedelta(microseconds=at - daemon.clock.utc()))
    daemon.clock.machine_boot = f"day {days}"
    await daemon.start()


async def run_until_day(daemon: Daemon, days: float) -> None:
    """Move the clock while the daemon runs."""
    at = Instant(START + int(days * DAY))
    daemon.clock.jump(timedelta(microseconds=at - daemon.clock.utc()))
    await daemon.pass_time(TICK)
    async with await daemon.session() as session:
        await session.admin.confirm_clock()
    await daemon.pass_time(SLOW_PASS)


def told(daemon: Daemon) -> list[tuple[object, object, object]]:
    found = [
        (fields["subclass"], fields.get("principal"), fields.get("days_left"))
        for event, fields in daemon.log.lines
        if event == CERTIFICATE and fields["subclass"] != "made"
    ]
    daemon.log.lines.clear()
    return found


async def status(daemon: Daemon) -> InstanceStatus:
    async with await daemon.session() as session:
        return msgspec.convert(await session.status(), InstanceStatus, strict=False)


@pytest.mark.rule("NBT-21")
@by_itself
async def test_an_expiring_certificate_is_told_thirty_seven_and_one_days_before(
    daemon: Daemon,
) -> None:
    await add_peer(daemon, days=100)
    await daemon.pass_time(SLOW_PASS)
    assert told(daemon) == []
    assert (await status(daemon)).certificates == ()
    for day, days_left, subclass in (
        (70.5, 29, "expires_soon"),
        (93.5, 6, "expires_soon"),
        (99.5, 0, "expires_soon"),
        (100.5, -1, "expired"),
    ):
        await run_until_day(daemon, day)
        assert told(daemon) == [(subclass, "peer:west", days_left)]
        await daemon.pass_time(10 * SLOW_PASS)
        assert told(daemon) == []  # once for each step
        seen = await status(daemon)
        (one,) = seen.certificates
        assert (one.owner, one.purpose, one.days_left) == ("peer:west", "transport", days_left)
        assert len(concerns(seen)) == 1
        codes = [found.code for found in examine(Seen(status=seen, now=seen.now))]
        assert codes.count("D26") == 1
        days = daemon.instance.parts.figures.rows()[-1].gauges["peer_certificate_days"]
        assert int(days // 1) == days_left
    for name in daemon.instance.parts.certificate_expiry.days_left():
        assert described(Scope.INSTANCE, name) is not None


@pytest.mark.rule("NBT-21", "SEC-9")
@by_itself
async def test_a_newer_certificate_ends_the_warning(daemon: Daemon) -> None:
    await add_peer(daemon, days=20)
    await daemon.pass_time(SLOW_PASS)
    assert told(daemon) == [("expires_soon", "peer:west", 19)]
    newer, _ = make_certificate("west", now=daemon.clock.utc())
    await daemon.instance.parts.credential_store.install(
        "peer:west", TRANSPORT, newer, actor="alice"
    )
    await daemon.pass_time(10 * SLOW_PASS)
    assert told(daemon) == []
    assert (await status(daemon)).certificates == ()


@pytest.mark.rule("NBT-21")
@by_itself
async def test_an_own_certificate_that_nobody_knows_is_replaced_in_silence(
    daemon: Daemon,
) -> None:
    credentials = daemon.instance.parts.credentials
    first = credentials.own(TRANSPORT, daemon.clock.utc())
    await at_day(daemon, DAYS - 29)
    await daemon.pass_time(SLOW_PASS)
    credentials = daemon.instance.parts.credentials
    second = credentials.own(TRANSPORT, daemon.clock.utc())
    assert first is not None
    assert second is not None
    assert first.certificate != second.certificate
    assert told(daemon) == []
    assert (await status(daemon)).certificates == ()


@pytest.mark.rule("NBT-21", "SEC-9")
@by_itself
async def test_an_own_certificate_that_others_know_is_not(daemon: Daemon) -> None:
    await add_peer(daemon, days=4000)
    first = daemon.instance.parts.credentials.own(TRANSPORT, daemon.clock.utc())
    await at_day(daemon, DAYS - 29)
    await daemon.pass_time(SLOW_PASS)
    assert daemon.instance.parts.credentials.own(TRANSPORT, daemon.clock.utc()) == first
    assert told(daemon) == [("expires_soon", None, 28)] * 2  # for transport and for dialogs


@pytest.mark.rule("VIEW-17", "SX-9")
@by_itself
async def test_principals_and_certificates_can_be_seen(daemon: Daemon) -> None:
    await add_peer(daemon, days=20)
    store = daemon.instance.parts.credential_store
    own = store.credentials.own(TRANSPORT, daemon.clock.utc())
    assert own is not None
    async with await daemon.session() as session:
        (peer,) = await session.view("principals")
        rows = await session.view("certificates")
        (theirs,) = await session.view("certificates", where={"principal_name": "peer:west"})
    assert (peer["name"], peer["type"], peer["certificates"]) == ("peer:west", "peer", 1)
    assert (theirs["subject"], theirs["days_left"], theirs["is_in_use"]) == ("west", 19, True)
    assert theirs["has_private_key"] is False
    mine, _ = sorted(
        (row for row in rows if row["principal_name"] is None),
        key=lambda row: row["purpose"],
        reverse=True,
    )
    assert mine["certificate_id"] == show_id(own.certificate.id)
    assert mine["has_private_key"] is True
    private = store.private_key(own)
    for row in rows:
        for value in row.values():
            assert private.hex() not in str(value)


@pytest.mark.rule("VIEW-18", "SX-15")
@by_itself
async def test_the_audit_is_read_newest_first_in_pages(daemon: Daemon) -> None:
    store = daemon.instance.parts.credential_store
    for number in range(7):
        await store.add_principal(Kind.CLIENT, f"c{number}", actor=f"a{number % 2}")
    async with await daemon.session() as session:
        seen: list[Any] = []
        after = None
        while True:
            page = await session.view_page("audit", limit=3, after=after)
            assert len(page.rows) <= 3
            seen += page.rows
            after = page.next
            if after is None:
                break
        assert [row["subject"] for row in seen[:7]] == [f"client:c{n}" for n in range(6, -1, -1)]
        assert seen[7]["action"] == "certificate_made"
        assert seen[7]["actor"] is None
        chosen = await session.view_page("audit", limit=2, where={"actor": "a1"})
        assert [row["subject"] for row in chosen.rows] == ["client:c5", "client:c3"]
        with pytest.raises(InvalidArgument):
            await session.view_page("audit", after="x")
