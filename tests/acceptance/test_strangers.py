"""What a daemon says to somebody who has not logged in: nothing about itself or its machine."""

import os
import platform
import re
import socket
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from brokerd.ids import BootId, InstanceId
from brokerd.protocol import client_frames
from brokerd.protocol.neighbour import Hello, encode
from tests.acceptance.serving import Place, free_port

BAD = Path(__file__).parents[1] / "data" / "bad" / "frames"
TRIES: dict[str, bytes] = {
    **{path.name: path.read_bytes() for path in sorted(BAD.glob("*.bin"))},
    "client: no such broker": client_frames.encode_hello(b"c" * 16, "nosuch", {}),
    "client: a path": client_frames.encode_hello(b"c" * 16, "../../etc/passwd", {}),
    "client: long id": client_frames.encode_hello(b"c" * 500, "main", {}),
    "client: no HELLO": client_frames.encode_request(1, None, "status", []),
    "peer: next version": encode(Hello(InstanceId(b"i" * 16), BootId(b"b" * 16), major=99)),
    "nothing": b"",
}
VERSIONS = ("brokerd", "msgspec", "uvloop", "cryptography", "sqlalchemy")


class Reachable(Place):
    """A place whose daemon has TCP listeners for clients and for peers."""

    def __init__(self, folder: Path) -> None:
        self.client_port = free_port()
        super().__init__(folder)
        self.write(listen=self.address)

    @property
    def address(self) -> str:
        return f"TCP://127.0.0.1:{self.client_port}"


@pytest.fixture
def place(tmp_path: Path) -> Reachable:
    return Reachable(tmp_path / "p")


def answers(port: int, sent: bytes) -> bytes:
    """All that comes back until the daemon closes the connection, or has nothing more to say."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.settimeout(20)
        came = b""
        try:
            stream.sendall(sent)
            stream.shutdown(socket.SHUT_WR)
            while more := stream.recv(65536):
                came += more
        except (ConnectionError, TimeoutError):
            pass
        return came


@pytest.mark.rule("SX-17", "SX-2", "BI-F1", "BI-F2")
def test_a_stranger_learns_no_name_version_or_path(place: Reachable) -> None:
    forbidden = [
        re.escape(text)
        for text in (
            str(place.data_dir),
            str(place.folder.name),
            "Traceback",
            "Error(",
            ".py",
            "/site-packages",
            "warehouse",
            "shop_q",
            os.uname().nodename,
            sqlite3.sqlite_version,
            platform.python_version(),
            *(version(name) for name in VERSIONS),
        )
    ]
    forbidden += [r"\bmain\b", r"\bhere\b"]  # the broker and the instance
    pattern = re.compile("|".join(one for one in forbidden if len(one) > 2).encode())
    said = {}
    with place.serving() as process:
        for port in (place.port, place.client_port):
            for name, sent in TRIES.items():
                came = answers(port, sent)
                echo = came.replace(sent, b"") if sent else came
                if found := pattern.search(echo):
                    said[port, name] = found[0], came
        assert process.poll() is None
    assert said == {}
