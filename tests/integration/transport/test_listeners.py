"""Whether a process is the one that listens at an address."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.transport.listeners import is_listener

pytestmark = [
    pytest.mark.rule("BI-C5"),
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tables of sockets"),
]
OTHER = """
import socket, sys
server = socket.create_server(("127.0.0.2", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other() -> Iterator["subprocess.Popen[str]"]:
    """Another program, which listens at a port of 127.0.0.2."""
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_a_process_that_listens_is_told_from_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"TCP://127.0.0.1:{server.getsockname()[1]}"
        assert is_listener(os.getpid(), address) is True
        assert is_listener(os.getppid(), address) is False
        wider = address.replace("127.0.0.1", "0.0.0.0")
        assert is_listener(os.getpid(), wider) is True
        elsewhere = address.replace("127.0.0.1", "127.0.0.3")
        assert is_listener(os.getpid(), elsewhere) is False
    assert is_listener(os.getpid(), address) is False


def test_another_program_counts_only_where_its_address_is_in_the_way(
    other: "subprocess.Popen[str]",
) -> None:
    assert other.stdout is not None
    port = int(other.stdout.readline())
    assert is_listener(other.pid, f"TCP://127.0.0.2:{port}") is True
    with socket.create_server(("127.0.0.1", port)):
        assert is_listener(os.getpid(), f"TCP://127.0.0.1:{port}") is True
        assert is_listener(os.getpid(), f"TCP://127.0.0.2:{port}") is False
        assert is_listener(os.getpid(), f"TCP://0.0.0.0:{port}") is False


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_addresses_of_ipv6_are_compared_as_well() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert is_listener(os.getpid(), f"TCP://[::1]:{port}") is True
        assert is_listener(os.getppid(), f"TCP://[::1]:{port}") is False


def test_a_unix_socket_names_its_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        assert is_listener(os.getpid(), f"unix:{tmp_path}/s") is True
        assert is_listener(os.getppid(), f"unix:{tmp_path}/s") is False
    assert is_listener(os.getpid(), f"unix:{tmp_path}/s") is None


def test_a_process_that_cannot_be_seen_is_not_judged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        address = f"TCP://127.0.0.1:{server.getsockname()[1]}"
        assert is_listener(gone.pid, address) is None
