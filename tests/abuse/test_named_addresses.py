"""A peer that names a new address in each message, against a daemon with a TRANSPORT route.

Such a route takes the address from the name of a service (RTE-62), so answers go, and attempts to
connect are made, wherever the peer says.
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.ids import BootId, BrokerId, ConversationId, Incarnation, InstanceId, MessageId
from brokerd.protocol.frames import Fragment, Hop, boxcar, encode_item
from brokerd.protocol.neighbour import Hello, encode
from brokerd.transport.destinations import MOST_KNOWN
from brokerd.transport.dialer import MOST_ATTEMPTS
from tests.abuse.test_held_doors import can_be_used, serving
from tests.abuse.test_unfinished_messages import MIB, resident
from tests.acceptance.serving import OBJECTS, Place

SENT = 16_000
TOGETHER = 500
ROUTE = '[[route]]\nname = "anywhere"\naddress = "TRANSPORT"\n'
FILES = 512


def item(number: int) -> bytes:
    """A first message that is refused, from a service that names an address of its own."""
    host = f"127.1.{number // 250}.{number % 250 + 1}"
    return encode_item(
        Fragment(
            conversation_id=ConversationId(b"%016d" % number),
            from_initiator=True,
            message_id=MessageId(b"m%015d" % number),
            sequence=0,
            fragment=0,
            fragments=1,
            flags=0,
            from_service=f"TCP://{host}:9/answers",
            to_service="warehouse",
            from_broker=BrokerId(b"%016d" % number),
            contract="no such contract",
            message_type="Order",
            expires_at=brokerd.clock.Instant(4 * 10**15),
            incarnation=Incarnation(b"i" * 16),
            ack=None,
            hop=Hop(b"", 10, 60_000, 0),
            body=b"x",
        )
    )


def boxcars() -> Iterator[bytes]:
    for at in range(0, SENT, TOGETHER):
        yield b"".join(boxcar([item(number) for number in range(at, at + TOGETHER)]))


@pytest.mark.rule("REL-25", "SX-12", "FR-2")
def test_addresses_that_a_peer_names_take_bounded_memory_and_descriptors(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    place.objects.write_text(OBJECTS + ROUTE)
    with serving(place, FILES) as process:
        before = resident(process.pid)
        with socket.create_connection(("127.0.0.1", place.port)) as peer:
            peer.sendall(encode(Hello(InstanceId(b"h" * 16), BootId(bytes(16)))))
            assert peer.recv(4096)
            peer.settimeout(60)
            for each in boxcars():
                peer.sendall(each)
            with brokerd.sync.connect(place.address, broker="main", wait=60) as broker:
                while True:
                    (row,) = broker.view("transport_counters")
                    if int(row["fragment_receives_total"]) == SENT:
                        break
                tried = int(row["connect_attempts_total"])
        can_be_used(place)
        with brokerd.sync.connect(place.address, broker="main") as broker:
            known = sum(1 for _ in rows(broker))
        grown = resident(process.pid) - before
    assert MOST_ATTEMPTS <= tried < SENT // 2
    assert known <= MOST_KNOWN
    assert grown < 100 * MIB, f"{grown // MIB} MiB more"


def rows(broker: brokerd.sync.Session) -> Iterator[object]:
    yield from broker.view("destinations")
