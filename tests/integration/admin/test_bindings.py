"""Remote service bindings of a running broker: declared, altered, shown, found by service."""

from pathlib import Path

import pytest

from brokerd.client.session import Session
from brokerd.errors import (
    DuplicateBinding,
    MayNotOwnCertificates,
    ObjectExists,
    ObjectInvalid,
    ObjectNotFound,
)
from brokerd.objects.declarations import parse
from brokerd.security.credentials import Kind
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import fails

TO_ORDERS = {"service": "urn:orders", "principal": "peer:west"}


async def know(daemon: Daemon, *names: str) -> None:
    """Add principals without certificates."""
    for name in names:
        kind = Kind(name.partition(":")[0])
        await daemon.instance.parts.credential_store.add_principal(kind, name, actor="root")


@pytest.mark.rule("SEC-18", "MON-6")
@scenario
async def test_a_binding_is_made_altered_shown_and_dropped(
    daemon: Daemon, session: Session
) -> None:
    kind = "remote_service_binding"
    await know(daemon, "peer:west", "client:till")
    await session.create(kind, "to orders", **TO_ORDERS)
    await fails(ObjectExists, session.create(kind, "to orders", **TO_ORDERS))
    assert await session.objects(kind) == [
        {"kind": kind, "name": "to orders", **TO_ORDERS, "anonymous": "off"}
    ]
    (change,) = await session.alter(kind, "to orders", anonymous="on", principal="client:till")
    assert change["sentence"] == (  # type: ignore[index]
        "remote service binding to orders: principal changes from peer:west to client:till, "
        "anonymous changes from off to on"
    )
    assert await session.view("remote_service_bindings") == [
        {
            "name": "to orders",
            "remote_service_binding_id": "to orders",
            "principal_id": None,
            "remote_service_name": "urn:orders",
            "service_contract_id": None,
            "remote_principal_id": "client:till",
            "is_anonymous_on": True,
        }
    ]
    catalog = daemon.broker.store.catalog
    assert catalog.binding_of["urn:orders"] is catalog.remote_service_bindings["to orders"]
    await session.drop(kind, "to orders")
    assert not daemon.broker.store.catalog.binding_of
    await fails(ObjectNotFound, session.drop(kind, "to orders"))


@pytest.mark.rule("SEC-18", "ERR-28083")
@scenario
async def test_what_a_binding_cannot_say(daemon: Daemon, session: Session) -> None:
    kind = "remote_service_binding"
    await know(daemon, "peer:west")
    await session.create(kind, "to orders", **TO_ORDERS)
    for nobody in ("public", "alice", "peer:", "user:alice", "PEER:west"):
        refusal = await fails(
            MayNotOwnCertificates, session.create(kind, "b", service="s", principal=nobody)
        )
        assert (refusal.ssb_code, nobody in refusal.message) == (28083, True)
    twice = await fails(DuplicateBinding, session.create(kind, "again", **TO_ORDERS))
    assert '"to orders"' in twice.message
    for wrong in ({"service": ""}, {"principal": None}, {"anonymous": "perhaps"}, {"colour": 1}):
        await fails(
            ObjectInvalid, session.create(kind, "b", **{**TO_ORDERS, "service": "s"} | wrong)
        )
    assert [one["name"] for one in await session.objects(kind)] == ["to orders"]


@pytest.mark.rule("SEC-18")
@scenario
async def test_a_file_declares_bindings_and_drops_the_others(
    daemon: Daemon, session: Session
) -> None:
    await know(daemon, "peer:west", "peer:east")
    await session.create("remote_service_binding", "old", service="s", principal="peer:east")
    declared = {**daemon.objects, "remote_service_binding": [{"name": "new", **TO_ORDERS}]}
    sentences = [one["sentence"] for one in await session.apply(declared)]  # type: ignore[index]
    assert sentences == [
        "remote service binding new is created: dialogs to urn:orders are secured for peer:west",
        "remote service binding old is dropped",
    ]
    assert await session.apply(declared) == []


@pytest.mark.rule("SEC-18")
def test_bindings_are_there_after_a_restart(tmp_path: Path) -> None:
    async def first(daemon: Daemon) -> None:
        await know(daemon, "peer:west")
        async with await daemon.session() as session:
            await session.create("remote_service_binding", "b", **TO_ORDERS, anonymous=True)

    async def second(daemon: Daemon) -> None:
        found = daemon.broker.store.catalog.binding_of["urn:orders"]
        assert (found.name, found.principal, found.is_anonymous) == ("b", "peer:west", True)

    play(first, tmp_path)
    play(second, tmp_path)


@pytest.mark.rule("SEC-18")
@scenario
async def test_the_principal_has_to_be_here_but_not_at_a_start(
    daemon: Daemon, session: Session
) -> None:
    parts = daemon.instance.parts
    await know(daemon, "peer:east")
    kind = "remote_service_binding"
    await session.create(kind, "known", service="s", principal="peer:east")
    refusal = await fails(ObjectNotFound, session.create(kind, "to orders", **TO_ORDERS))
    assert "peer:west" in refusal.message
    assert "brokerd peer pair" in refusal.hint
    declared = {**daemon.objects, kind: [{"name": "to orders", **TO_ORDERS}]}
    await fails(ObjectNotFound, session.apply(declared, dry_run=True))
    await parts.credential_store.remove_principal("peer:east", actor="root")
    await session.create("queue", "another")
    wanted = parse({**daemon.objects, kind: [{"name": "at the start", **TO_ORDERS}]})
    await parts.administration.objects.apply(wanted, dry_run=False, keep=True)
    assert "urn:orders" in daemon.broker.store.catalog.binding_of
    (warned,) = [one for _, one in daemon.log.lines if one.get("subclass") == "unknown_principal"]
    assert "peer:west" in str(warned["reason"])
    await session.drop(kind, "known")
