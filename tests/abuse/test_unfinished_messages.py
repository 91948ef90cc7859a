"""A peer that begins messages and finishes none, against a daemon with little memory for them."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.ids import (
    BootId,
    BrokerId,
    ConversationId,
    Incarnation,
    InstanceId,
    MessageId,
)
from brokerd.protocol.frames import Fragment, Hop, boxcar, encode_item
from brokerd.protocol.neighbour import Hello, encode
from tests.abuse.test_held_doors import set_up
from tests.acceptance.serving import Place

MIB = 1 << 20
PIECE = 32 * 1024
DIALOGS = 128
SENT = 32
"""Fragments of each dialog that come."""
FRAGMENTS = 64


def fragments(number: int) -> Iterator[bytes]:
    """That fragment of every dialog."""
    for dialog in range(DIALOGS):
        yield encode_item(
            Fragment(
                conversation_id=ConversationId(b"%016d" % dialog),
                from_initiator=True,
                message_id=MessageId(b"m%015d" % dialog),
                sequence=0,
                fragment=number,
                fragments=FRAGMENTS,
                flags=0,
                from_service="far",
                to_service="warehouse",
                from_broker=BrokerId(b"f" * 16),
                contract="orders",
                message_type="Order",
                expires_at=brokerd.clock.Instant(4 * 10**15),
                incarnation=Incarnation(b"i" * 16),
                ack=None,
                hop=Hop(b"", 10, 60_000, 0),
                body=bytes(PIECE),
            )
        )


def resident(pid: int) -> int:
    """Bytes of memory that a process has now."""
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * 4096


@pytest.mark.rule("DSP-15", "REL-25", "SX-12")
def test_unfinished_messages_do_not_fill_memory(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    marks = {"mem_low": "1MiB", "mem_dialog": "1MiB", "mem_high": "4MiB", "mem_hard": "8MiB"}
    set_up(place, "dispatcher", **marks)
    set_up(place, "store", min_free="1MiB", reserve="0B")
    with place.serving() as process:
        before = resident(process.pid)
        with socket.create_connection(("127.0.0.1", place.port)) as peer:
            peer.sendall(encode(Hello(InstanceId(b"h" * 16), BootId(bytes(16)))))
            assert peer.recv(4096)
            peer.settimeout(60)
            for number in range(SENT):
                items = list(fragments(number))
                for at in range(0, DIALOGS, 16):
                    peer.sendall(b"".join(boxcar(items[at : at + 16])))
            with brokerd.sync.connect(place.address, broker="main") as broker:
                while taken(broker) < DIALOGS * SENT:
                    assert process.poll() is None
                grown = resident(process.pid) - before
        assert grown < DIALOGS * SENT * PIECE // 2, f"{grown // MIB} MiB more"


def taken(broker: brokerd.sync.Session) -> int:
    """Fragments that came and do not wait to be stored."""
    (row,) = broker.view("transport_counters")
    return int(row["fragment_receives_total"]) - int(row["pending_fragments_for_receive"])
