"""Whole instances whose endpoints require certificates, in virtual time."""

from typing import Any

import pytest

from brokerd.config.settings import Authentication, Encryption
from brokerd.errors import InvalidArgument
from brokerd.security.certificates import show_id
from brokerd.security.credentials import Kind, Purpose
from brokerd.security.grants import parse_grant
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.network.conftest import Pair, address_of, only, ready, talk

ALGORITHM = "TLS_AES_256_GCM_SHA384"


@pytest.fixture(autouse=True)
def no_socket_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sockets of a simulated network have no file whose mode could be changed."""
    monkeypatch.setattr("brokerd.instance.instance.let_others_in", lambda _address: None)


async def introduce(one: RigInstance, two: RigInstance, *, connect: bool = True) -> None:
    """Install the certificate of `two` at `one`, and let it connect."""
    store, clock = one.instance.parts.credential_store, one.instance.surroundings.clock
    own = two.instance.parts.credentials.own(Purpose.TRANSPORT, clock.utc())
    assert own is not None
    certificate = (Purpose.TRANSPORT, own.certificate)
    await store.add_principal(Kind.PEER, two.name, certificate, actor="test")
    grants = one.instance.parts.grants
    grants.declared = (parse_grant("send on * to public"),)  # its dialogs are plain
    if connect:
        await one.session.admin.grant(f"connect on endpoint to peer:{two.name}")


async def require(*instances: RigInstance) -> None:
    for one, two in (instances, instances[::-1]):
        one.link._network.mangle(one.name, two.name, None)  # it would cut TLS into frames
    for one in instances:
        await one.session.admin.alter_endpoint(encryption="required", authentication="certificate")


async def audited(one: RigInstance) -> list[dict[str, Any]]:
    return [row for row in await one.session.view("audit") if row["action"] == "login"]


@pytest.mark.rule("END-6", "END-10", "END-11", "SEC-2", "SEC-12", "SEC-55", "MON-1")
async def test_an_endpoint_is_encrypted_while_it_is_in_use(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await talk(one, two, b"in clear")
    await brokerd_clock.advance(1)
    assert (await only(one, "connections"))["encryption_algorithm_desc"] == "NONE"
    await introduce(one, two)
    await introduce(two, one)
    await require(one, two)
    await talk(one, two, b"encrypted")
    await brokerd_clock.advance(120)
    assert ready(two) == 2
    for here, there in ((one, two), (two, one)):
        row = await only(here, "connections")
        assert row["principal_name"] == f"peer:{there.name}"
        assert row["authentication_method"] == "CERTIFICATE"
        assert row["encryption_algorithm_desc"] == ALGORITHM
        parts = there.instance.parts
        own = parts.credentials.own(Purpose.TRANSPORT, there.instance.surroundings.clock.utc())
        assert own is not None
        assert row["peer_certificate_id"] == show_id(own.certificate.id)
        endpoint = await only(there, "endpoint")
        assert endpoint["certificate_id"] == row["peer_certificate_id"]
        assert (endpoint["encryption"], endpoint["connection_auth"]) == ("required", "certificate")
        assert endpoint["encryption_algorithm"] == "TLS 1.3"
        principal = here.instance.parts.credentials.principals[f"peer:{there.name}"]
        assert principal.instance_id == parts.instance_id
        (login,) = await audited(here)
        assert (login["actor"], login["outcome"]) == (f"peer:{there.name}", "success")


@pytest.mark.rule("SEC-1", "SEC-3", "SEC-12", "NBT-20", "XMT-19")
async def test_a_stranger_s_messages_wait_with_a_reason_that_names_what_to_do(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await introduce(one, two)
    await require(one, two)
    await talk(one, two, b"from a stranger")
    await brokerd_clock.advance(5)
    assert ready(two) == 0
    status = one.instance.parts.destinations.status(address_of("two"))
    assert status.reason == "auth_failed"
    row = await only(one, "transmission_queue")
    assert row["status_key"] == "auth_failed"
    assert "brokerd peer add" in row["transmission_status"]
    (refused,) = await audited(two)
    assert refused["outcome"] == "refused"
    assert refused["actor"] == "TCP://one"  # without the port: repeats are counted together
    await introduce(two, one)
    await one.session.admin.grant("send on urn:shop to peer:two")  # a change ends all pauses
    await brokerd_clock.advance(3)
    assert ready(two) == 1


@pytest.mark.rule("SX-3", "SEC-6", "SEC-9", "MON-22")
@pytest.mark.parametrize("how", ["revoke", "remove"])
async def test_a_peer_that_may_no_longer_connect_is_cut_off(
    brokerd_pair: Pair, brokerd_clock: RigClock, how: str
) -> None:
    one, two = brokerd_pair
    await introduce(one, two)
    await introduce(two, one)
    await require(one, two)
    await talk(one, two, b"1")
    await brokerd_clock.advance(5)
    assert ready(two) == 1
    if how == "revoke":
        await two.session.admin.revoke("connect on endpoint to peer:one")
    else:
        await two.instance.parts.credential_store.remove_principal("peer:one", actor="test")
    await brokerd_clock.advance(1)
    assert await two.session.view("connections") == []
    await talk(one, two, b"2")
    await brokerd_clock.advance(60)
    assert ready(two) == 1
    status = one.instance.parts.destinations.status(address_of("two"))
    assert status.reason == ("refused" if how == "revoke" else "auth_failed")
    (told,) = (await two.session.status())["refused_logins"]
    assert told["who"] == ("peer:one" if how == "revoke" else "TCP://one")
    assert told["count"] >= 1
    await one.session.admin.alter_endpoint(state="stopped")
    await brokerd_clock.advance(3700)
    assert (await two.session.status())["refused_logins"] == []


@pytest.mark.rule("SEC-9", "SEC-89", "END-6")
async def test_a_certificate_is_replaced_without_interruption(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await introduce(one, two)
    await introduce(two, one)
    await require(one, two)
    await talk(one, two, b"1")
    await brokerd_clock.advance(5)
    before = await only(one, "connections")
    store = two.instance.parts.credential_store
    old = two.instance.parts.credentials.own(
        Purpose.TRANSPORT, two.instance.surroundings.clock.utc()
    )
    assert old is not None
    new = await store.make_own(Purpose.TRANSPORT, actor="test", is_active=False)
    await one.instance.parts.credential_store.install(
        "peer:two", Purpose.TRANSPORT, new.certificate, actor="test"
    )
    await store.switch_own(Purpose.TRANSPORT, actor="test")
    await talk(one, two, b"2")
    await brokerd_clock.advance(5)
    assert (await only(one, "connections"))["connection_id"] == before["connection_id"]
    # whoever accepted the old one removes it: the connection ends in an orderly way
    await one.instance.parts.credential_store.remove_certificate(old.certificate.id, actor="test")
    await talk(one, two, b"3")
    await brokerd_clock.advance(1)  # at once, and not with the next connect pass
    assert ready(two) == 3
    assert (await only(one, "destinations"))["losses"] == 0
    # the old one is removed: what began with it ends in an orderly way, and is made anew
    await store.remove_certificate(old.certificate.id, actor="test")
    await talk(one, two, b"4")
    await brokerd_clock.advance(1)
    after = await only(one, "connections")
    assert after["connection_id"] != before["connection_id"]
    assert after["peer_certificate_id"] == show_id(new.certificate.id)
    assert ready(two) == 4


@pytest.mark.rule("SEC-5", "SEC-38")
async def test_without_a_usable_private_key_nothing_connects_and_the_endpoint_says_why(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await introduce(one, two)
    await introduce(two, one)
    two.instance.parts.credential_store.master_key = None
    await require(one, two)
    assert "keys" in (await only(two, "endpoint"))["listen_error"]
    assert (await only(one, "endpoint"))["listen_error"] == ""
    await talk(one, two, b"1")
    await talk(two, one, b"1")
    await brokerd_clock.advance(5)
    assert (ready(one), ready(two)) == (0, 0)
    assert two.instance.parts.destinations.status(address_of("one")).reason == "auth_failed"


@pytest.mark.rule("END-10", "END-11", "SEC-10")
async def test_settings_that_contradict_each_other_change_nothing(brokerd_pair: Pair) -> None:
    one, _ = brokerd_pair
    before = await only(one, "endpoint")
    for encryption, authentication in (
        (Encryption.REQUIRED, Authentication.NONE),
        (Encryption.SUPPORTED, Authentication.CERTIFICATE),
        (Encryption.DISABLED, Authentication.CERTIFICATE),
    ):
        with pytest.raises(InvalidArgument, match=r"(SEC-10)|admits unencrypted"):
            await one.session.admin.alter_endpoint(
                encryption=str(encryption), authentication=str(authentication)
            )
    assert await only(one, "endpoint") == before
