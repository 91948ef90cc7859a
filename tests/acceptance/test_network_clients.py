"""Programs that connect over TCP from wherever: with TLS, each with its own certificate."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.client.tls import CERTIFICATE_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE, Tls
from brokerd.clock import SystemClock
from brokerd.errors import (
    AccessDenied,
    BrokerError,
    ConnectionLost,
    DaemonUnreachable,
    InvalidArgument,
)
from brokerd.ids import secret_bytes
from brokerd.security.certificates import Certificate, make_certificate
from brokerd.security.credentials import Kind, Purpose
from brokerd.security.grants import Entry, Origin, parse_grant
from brokerd.security.pem import PRIVATE_KEY, to_pem
from tests.acceptance.one_process import Served

OBJECTS: dict[str, Any] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "box"}],
    "service": [{"name": "urn:shop", "queue": "box", "contracts": ["DEFAULT"]}],
}


class Program:
    """The files of a program that connects."""

    def __init__(self, folder: Path, name: str, server: Certificate) -> None:
        self.certificate, key = make_certificate(name, now=SystemClock().utc(), random=secret_bytes)
        self.tls = Tls(
            certificate=str(folder / f"{name}.pem"),
            key=str(folder / f"{name}.key"),
            server=str(folder / f"{name}-server.pem"),
        )
        Path(self.tls.certificate).write_text(self.certificate.pem)
        self.trust(server)
        Path(self.tls.key).touch(0o600)
        Path(self.tls.key).write_text(to_pem(PRIVATE_KEY, key))

    def trust(self, server: Certificate) -> None:
        Path(self.tls.server).write_text(server.pem)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("tls"), OBJECTS, listen="TCP://0.0.0.0:0")
    served.start()
    yield served
    served.stop()


@pytest.fixture
def program(daemon: Served, tmp_path: Path, request: pytest.FixtureRequest) -> Program:
    """A program that the daemon does not know."""
    own = daemon.instance.parts.credentials.own(Purpose.TRANSPORT, SystemClock().utc())
    assert own is not None
    return Program(tmp_path, request.node.name[:60].replace("[", "-").rstrip("]"), own.certificate)


def install(daemon: Served, program: Program, *grants: str) -> str:
    name = f"client:{program.certificate.subject}"
    parts = daemon.instance.parts

    async def add() -> None:
        await parts.credential_store.add_principal(
            Kind.CLIENT, name, (Purpose.TRANSPORT, program.certificate), actor="test"
        )
        for grant in grants:
            parts.grants.add(Entry(grant=parse_grant(f"{grant} to {name}"), origin=Origin.ONLINE))

    daemon.run(add())
    return name


@pytest.mark.rule("SX-21", "CLP-1", "CLP-130", "SEC-4")
async def test_a_program_with_an_installed_certificate_has_the_rights_of_its_name(
    daemon: Served, program: Program
) -> None:
    install(daemon, program, "send on urn:shop", "receive on main/box")
    async with brokerd.connect(daemon.tcp_address, tls=program.tls) as session:
        handle = await session.begin_dialog("urn:shop", "urn:shop")
        await session.send(handle, b"a" * 60_000)
        (message,) = await session.receive("box", autocommit=True)
        assert message.body == b"a" * 60_000
        assert await session.queue_of("urn:shop") == "box"  # without the right to see views
        with pytest.raises(AccessDenied):
            await session.create("queue", "mine")


@pytest.mark.rule("SEC-82", "CLP-130")
async def test_a_worker_whose_objects_are_all_there_needs_to_receive_alone(
    daemon: Served, program: Program
) -> None:
    app = brokerd.App("urn:shop")

    @app.activate("box")
    async def take(_body: bytes) -> None: ...

    install(daemon, program, "receive on main/box")
    async with brokerd.connect(daemon.tcp_address, tls=program.tls) as session:
        assert await session.declare(app) == []
        await app.run(session, idle=0.1)
        fresh = brokerd.App("urn:fresh")
        fresh.activate()(take)
        with pytest.raises(AccessDenied) as refused:
            await session.declare(fresh)
        assert "service urn:fresh" in refused.value.hint


@pytest.mark.rule("SEC-83", "SX-21")
async def test_a_unix_socket_beside_tcp_stays_open_to_the_daemon_s_own_user(
    tmp_path: Path, daemon: Served
) -> None:
    socket = f"unix:{tmp_path}/s"
    both = Served(tmp_path / "d", OBJECTS, listen=(socket, "TCP://0.0.0.0:0"))
    both.folder.mkdir()
    both.start()
    try:
        assert both.address == socket
        async with brokerd.connect(socket) as session:  # no certificate, and every right
            await session.create("queue", "mine")
        own = both.instance.parts.credentials.own(Purpose.TRANSPORT, SystemClock().utc())
        assert own is not None
        program = Program(tmp_path, "known", own.certificate)
        install(both, program, "receive on main/box")
        async with brokerd.connect(both.tcp_address, tls=program.tls) as session:
            assert await session.receive("box", autocommit=True) == []
        with pytest.raises(BrokerError):  # in clear
            await brokerd.connect(both.tcp_address)
    finally:
        both.stop()


@pytest.mark.rule("SX-3", "SX-21")
async def test_a_program_whose_certificate_is_removed_is_cut_off(
    daemon: Served, program: Program
) -> None:
    name = install(daemon, program, "receive on main/box")
    async with brokerd.connect(daemon.tcp_address, tls=program.tls, retry=0) as session:
        await session.receive("box", autocommit=True)
        daemon.run(daemon.instance.parts.credential_store.remove_principal(name, actor="test"))
        with pytest.raises(ConnectionLost):
            await session.receive("box", autocommit=True, wait=30)


@pytest.mark.rule("CLP-130", "SX-21")
async def test_a_program_without_grants_has_no_rights(daemon: Served, program: Program) -> None:
    install(daemon, program)
    async with brokerd.connect(daemon.tcp_address, tls=program.tls) as session:
        for work in (session.receive("box", autocommit=True), session.create("queue", "mine")):
            with pytest.raises(AccessDenied):
                await work


@pytest.mark.rule("SX-21", "SEC-3", "SEC-12")
async def test_a_program_with_an_unknown_certificate_is_refused_and_told_what_to_do(
    daemon: Served, program: Program
) -> None:
    with pytest.raises(DaemonUnreachable, match="brokerd client add"):
        async with brokerd.connect(daemon.tcp_address, tls=program.tls):
            pass
    refused = [one for _, one in daemon.log.lines if one.get("subclass") == "client_refused"]
    assert "not installed here" in str(refused[-1]["error"])


@pytest.mark.rule("SX-21", "SX-4")
async def test_a_peer_s_certificate_is_not_that_of_a_client(
    daemon: Served, program: Program
) -> None:
    async def add() -> None:
        await daemon.instance.parts.credential_store.add_principal(
            Kind.PEER,
            program.certificate.subject,
            (Purpose.TRANSPORT, program.certificate),
            actor="test",
        )

    daemon.run(add())
    with pytest.raises(BrokerError):
        async with brokerd.connect(daemon.tcp_address, tls=program.tls):
            pass


@pytest.mark.rule("SX-21", "CLP-1")
async def test_a_program_that_does_not_encrypt_is_refused(daemon: Served) -> None:
    with pytest.raises(AccessDenied, match="have to encrypt"):
        async with brokerd.connect(daemon.tcp_address):
            pass


@pytest.mark.rule("SX-4")
async def test_a_daemon_with_another_certificate_gets_no_hello(
    daemon: Served, program: Program
) -> None:
    install(daemon, program)
    other, _ = make_certificate("other", now=SystemClock().utc(), random=secret_bytes)
    program.trust(other)
    with pytest.raises(DaemonUnreachable, match="the daemon's certificate is not the one"):
        async with brokerd.connect(daemon.tcp_address, tls=program.tls):
            pass


@pytest.mark.rule("SX-4")
async def test_a_program_that_wants_tls_never_goes_on_without(program: Program) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\1hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(DaemonUnreachable, match="does not encrypt") as refusal:
            async with brokerd.connect(f"tcp://127.0.0.1:{port}", tls=program.tls):
                pass
    assert "leave the TLS files out" in refusal.value.hint
    assert "brokerd serve" not in refusal.value.hint


@pytest.mark.rule("SX-6", "SX-9")
async def test_a_private_key_that_others_may_read_is_refused(program: Program) -> None:
    os.chmod(program.tls.key, 0o640)
    with pytest.raises(InvalidArgument, match="other users can read") as refusal:
        async with brokerd.connect("tcp://127.0.0.1:1", tls=program.tls):
            pass
    assert refusal.value.hint == f"chmod 600 {program.tls.key}"


@pytest.mark.rule("CLP-1")
def test_commands_take_the_files_as_options_and_from_the_environment(
    daemon: Served,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(daemon, program, "control on *")
    for name in (CERTIFICATE_VARIABLE, KEY_VARIABLE, SERVER_VARIABLE):
        monkeypatch.setenv(name, "")
    tls = program.tls
    files = ("--tls-certificate", tls.certificate, "--tls-key", tls.key, "--tls-server", tls.server)
    command = ["queue", "ls", "--address", daemon.tcp_address]
    assert main([*command, *files]) == 0
    assert "box" in capsys.readouterr().out
    assert main(command) == 0  # from the environment, where the options have put them
    assert "box" in capsys.readouterr().out
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert main(command) != 0
    assert KEY_VARIABLE in capsys.readouterr().err
