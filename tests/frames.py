"""The committed frames: every valid kind, and the hostile ones of BI-F1 to BI-F6, as files.

`python -m tests.frames` writes those that are missing; a file that is there is never changed, since
it says what a peer of an earlier version sends. What fuzzing finds is added by hand, named alike:
RULE.WHEN.ANSWER.what.bin, where WHEN is `login` (the first bytes a stranger writes) or `online`
(behind a login), and ANSWER what becomes of it: `closes` that connection, `drops` the item alone,
`waits` for the rest until a limit ends it, or `ignores` it.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack
from msgspec.structs import asdict, replace

from brokerd.clock import Instant
from brokerd.ids import BootId, BrokerId, ConversationId, Incarnation, InstanceId, MessageId
from brokerd.protocol.brokers import brokers_here
from brokerd.protocol.frames import (
    END,
    FRAME_LIMIT,
    LOGIN_LIMIT,
    Ack,
    AckOnly,
    BrokerErrorItem,
    Fragment,
    Hop,
    Item,
    Kind,
    SecuredAck,
    SecuredError,
    SecuredFragment,
    boxcar,
    encode_frame,
    encode_item,
)
from brokerd.protocol.neighbour import (
    Arbitrate,
    Goodbye,
    Hello,
    Notice,
    Ping,
    Pong,
    Reject,
    Verdict,
    encode,
)
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.protocol.trace import Leg, Step, Trace

HOME = Path(__file__).parent / "data"
VALID = HOME / "frames"
BAD = HOME / "bad" / "frames"

ME = InstanceId(b"M" * 16)
PEER = InstanceId(b"P" * 16)
HELLO = Hello(PEER, BootId(b"B" * 16), port=4022)
CONVERSATION = ConversationId(b"C" * 16)
BROKER = BrokerId(b"K" * 16)
HOP = Hop(BROKER, 10, 60_000, 5)
ACK = Ack(7, 0, 9, 3, BROKER, True, ((9, 0, 9, 1),))


class Hostile(NamedTuple):
    """What a file says by its name, and what is in it."""

    name: str
    data: bytes

    @property
    def rule(self) -> str:
        return self.name.split(".")[0]

    @property
    def when(self) -> str:
        return self.name.split(".")[1]

    @property
    def answer(self) -> str:
        return self.name.split(".")[2]


def fragment(**fields: object) -> Fragment:
    values: dict[str, object] = {
        "conversation_id": CONVERSATION,
        "from_initiator": True,
        "message_id": MessageId(b"I" * 16),
        "sequence": 1,
        "fragment": 0,
        "fragments": 1,
        "flags": 0,
        "from_service": "//far/Shop",
        "to_service": "//here/Warehouse",
        "from_broker": BROKER,
        "contract": "orders/v1",
        "message_type": "Order",
        "expires_at": Instant(2 * 10**15),
        "incarnation": Incarnation(b"N" * 16),
        "ack": None,
        "hop": HOP,
        "body": b"one line",
    }
    return Fragment(**(values | fields))  # type: ignore[arg-type]


def packed(*items: Item) -> bytes:
    return b"".join(boxcar([encode_item(item) for item in items]))


def valid() -> dict[str, bytes]:
    """One frame of each kind, and of each kind of item."""
    ack = AckOnly(CONVERSATION, False, "//here/Warehouse", "//far/Shop", BROKER, ACK, HOP)
    error = BrokerErrorItem(
        CONVERSATION, False, "//here/Warehouse", "//far/Shop", BROKER, -8408, "no", HOP
    )
    own = asdict(fragment(body=b"sealed, and its tag...")) | {"hop": HOP}
    secured = SecuredFragment(**own, key_id=b"K" * 16, ack_code=b"", security=b"S" * 200)
    with_ack = replace(secured, ack=ACK, ack_code=b"M" * 16, security=b"")
    own = asdict(ack) | {"ack": ACK, "hop": HOP}
    secured_ack = SecuredAck(**own, ack_code=b"M" * 16)
    secured_error = SecuredError(
        CONVERSATION, False, "//here/Warehouse", "//far/Shop", BROKER, b"E" * 60, HOP
    )
    notice = Notice(CONVERSATION, True, 3, "local_service_missing", "//here/Nobody")
    way = Step("out", "east", "main", "remote", "2", "to_west", "tcp://west:4022", "", "")
    trace = Trace(b"n" * 16, Leg.OUT, "//far/Shop", b"", "//here/Shop", BROKER, 10, (way,))
    return {
        "hello": encode(HELLO),
        "reject": encode(Reject("draining", "wait_validation")),
        "arbitrate": encode(Arbitrate(Verdict.WON)),
        "ping": encode(Ping(17)),
        "pong": encode(Pong(17)),
        "goodbye": encode(Goodbye("idle")),
        "notice": encode(notice),
        "trace": encode(trace),
        "role-question": encode(RoleQuestion(BROKER, 7)),
        "role-answer": encode(RoleAnswer(BROKER, "principal", 8)),
        "brokers": encode(brokers_here([BROKER, BrokerId(b"L" * 16)])),
        "boxcar-empty": packed(),
        "boxcar-fragment": packed(fragment()),
        "boxcar-fragment-with-ack": packed(fragment(ack=ACK)),
        "boxcar-end": packed(fragment(flags=END, message_type="", body=b"")),
        "boxcar-ack": packed(ack),
        "boxcar-error": packed(error),
        "boxcar-secured": packed(secured, secured_ack, secured_error, with_ack),
        "boxcar-several": packed(fragment(), ack, fragment(sequence=2, body=b""), error),
    }


def hostile() -> list[Hostile]:
    """The table of BI-F1 to BI-F6, as far as it is about bytes."""
    return [Hostile(f"{name}.bin", data) for name, data in _hostile()]


def _hostile() -> Iterator[tuple[str, bytes]]:
    yield "BI-F1.login.closes.http", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    yield "BI-F1.login.closes.tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)
    yield "BI-F1.login.closes.ssh", b"SSH-2.0-OpenSSH_9.6\r\n"
    yield "BI-F1.login.closes.random", bytes((n * 167 + 13) % 256 for n in range(4, 200))
    yield "BI-F1.login.closes.wrong-magic", _frame(Kind.HELLO, ("rabbit", 1, 0, b"", b"", 0, 0, {}))
    for when in ("login", "online"):
        yield f"BI-F2.{when}.closes.length-0", bytes(8)
        yield f"BI-F2.{when}.closes.length-4GiB", b"\xff\xff\xff\xff" + b"\x05" * 60
    login, online = LOGIN_LIMIT, FRAME_LIMIT
    yield "BI-F2.login.closes.length-above-limit", struct.pack(">IB", login + 1, Kind.HELLO)
    yield "BI-F2.online.closes.length-above-limit", struct.pack(">IB", online + 1, Kind.BOXCAR)
    yield "BI-F2.login.waits.length-then-silence", struct.pack(">IB", login, Kind.HELLO)
    yield "BI-F2.online.waits.length-then-silence", struct.pack(">IB", online, Kind.BOXCAR)
    yield from _headers()
    yield from _brokers()
    yield from _orders()
    yield from _items()


def _headers() -> Iterator[tuple[str, bytes]]:
    """BI-F4, in a PING, whose payload is one array, and in the header of an item."""
    nested: object = 1
    for _ in range(9):
        nested = [nested]
    ping = {
        "nested-9": msgpack.packb([1, nested]),
        "array-1025": msgpack.packb([1, [0] * 1025]),
        "map-65": msgpack.packb([1, {str(n): n for n in range(65)}]),
        "key-no-text": b"\x92\x01\x81\x01\x01",
        "key-twice": b"\x92\x01\x82\xa1a\x01\xa1a\x02",
        "nan": msgpack.packb([1, float("nan")]),
        "extension": msgpack.packb([1, msgpack.ExtType(5, b"x")]),
        "timestamp": msgpack.packb([1, msgpack.Timestamp(1)]),
        "bad-utf8": b"\x92\x01\xa2\xc3\x28",
        "trailing": msgpack.packb([1]) + b"\x01",
        "reserved-c1": b"\x92\x01\xc1",
        "negative": msgpack.packb([-1]),
        "2-to-64": msgpack.packb([2**64 - 1]),
        "no-array": msgpack.packb(17),
        "empty": b"",
        "array-cut": b"\x93\x01",
        "bomb": b"\xdd\xff\xff\xff\xff",
        "nested-2000": b"\x91" * 2000 + b"\x01",
    }
    for name, payload in ping.items():
        yield f"BI-F4.online.closes.ping-{name}", encode_frame(Kind.PING, payload)
    for name in ("extension", "bad-utf8", "reserved-c1", "array-cut", "bomb", "nested-2000"):
        yield f"BI-F4.online.closes.item-{name}", encode_frame(Kind.BOXCAR, ping[name])
    hello = ("brokerd", 1, 0, bytes(PEER), b"B" * 16, 4022, FRAME_LIMIT)
    yield (
        "BI-F4.login.closes.hello-map-65",
        _frame(Kind.HELLO, (*hello, {str(n): n for n in range(65)})),
    )
    yield (
        "BI-F4.login.closes.hello-id-short",
        _frame(Kind.HELLO, ("brokerd", 1, 0, b"P", *hello[4:], {})),
    )
    yield "BI-F4.login.closes.hello-port", _frame(Kind.HELLO, (*hello[:5], 65_536, FRAME_LIMIT, {}))
    yield "BI-F4.login.closes.hello-smallest-frame", _frame(Kind.HELLO, (*hello[:6], 1, {}))
    yield (
        "BI-F5.login.closes.hello-another-version",
        _frame(Kind.HELLO, ("brokerd", 9, *hello[2:], {})),
    )


def _brokers() -> Iterator[tuple[str, bytes]]:
    """BI-F4 of a frame that is all ids (TRN-46)."""
    many = [number.to_bytes(16, "big") for number in range(201)]
    yield "BI-F4.online.closes.brokers-201", _frame(Kind.BROKERS, (many,))
    yield "BI-F4.online.closes.brokers-id-short", _frame(Kind.BROKERS, ([b"K" * 15],))
    yield "BI-F4.online.closes.brokers-no-array", _frame(Kind.BROKERS, (b"K" * 16,))


def _orders() -> Iterator[tuple[str, bytes]]:
    """BI-F5: the right frame at the wrong time."""
    frames = valid()
    for name in ("ping", "arbitrate", "notice", "brokers", "boxcar-fragment", "reject", "goodbye"):
        yield f"BI-F5.login.closes.{name}", frames[name]
    yield "BI-F5.online.closes.second-hello", frames["hello"]
    yield "BI-F5.online.closes.second-arbitrate", frames["arbitrate"]
    yield "BI-F5.online.closes.kind-77", encode_frame(77, b"\x90")
    yield "BI-F5.online.ignores.ping-of-a-later-minor", _frame(Kind.PING, (1, "more", {"a": [1]}))


def _items() -> Iterator[tuple[str, bytes]]:
    """BI-F6: items whose end is known and whose header is off."""
    good = encode_item(fragment())
    header = list(msgpack.unpackb(good[: good.index(b"one line")], use_list=True))
    size = 1

    def changed(**at: object) -> bytes:
        fields = list(header)
        for place, value in at.items():
            fields[int(place[1:])] = value
        return encode_frame(Kind.BOXCAR, msgpack.packb(fields) + b"one line" + good)

    yield "BI-F6.online.drops.flags-end-and-error", changed(_8=3)
    yield "BI-F6.online.drops.flags-unknown", changed(_8=64)
    yield "BI-F6.online.drops.message-0-ends", changed(_5=0, _8=END, _13="")
    yield "BI-F6.online.drops.end-with-a-type", changed(_8=END)
    yield "BI-F6.online.drops.no-type", changed(_13="")
    yield "BI-F6.online.drops.no-conversation", changed(_2=bytes(16))
    yield "BI-F6.online.drops.no-message-id", changed(_4=bytes(16))
    yield "BI-F6.online.drops.fragment-outside", changed(_6=1, _7=1)
    yield "BI-F6.online.drops.no-fragments", changed(_7=0)
    yield "BI-F6.online.drops.sequence-negative", changed(_5=-1)
    yield "BI-F6.online.drops.sequence-2-to-63", changed(_5=2**63)
    yield "BI-F6.online.drops.service-empty", changed(_10="")
    yield "BI-F6.online.drops.service-257", changed(_10="x" * 257)
    yield "BI-F6.online.drops.hop-no-block", changed(_17=None)
    yield "BI-F6.online.drops.hops-256", changed(_17=[b"", 256, 1, 1])
    yield "BI-F6.online.drops.ttl-negative", changed(_17=[b"", 1, -1, 1])
    yield (
        "BI-F6.online.drops.ack-ranges-17",
        changed(_16=[1, 0, 1, 0, bytes(BROKER), True, [[n, 0, n, 0] for n in range(17)]]),
    )
    yield "BI-F6.online.drops.ack-going-back", changed(_16=[5, 0, 1, 0, bytes(BROKER), True, []])
    yield "BI-F6.online.drops.unknown-item", changed(_0=99)
    yield "BI-F6.online.drops.header-17-KiB", changed(_11="x" * 17_000)
    fields = list(header)
    fields[size] = 10_000
    yield (
        "BI-F6.online.closes.body-longer-than-the-frame",
        encode_frame(Kind.BOXCAR, msgpack.packb(fields) + b"one line"),
    )
    fields[size] = -1
    yield "BI-F6.online.closes.body-negative", encode_frame(Kind.BOXCAR, msgpack.packb(fields))


def _frame(kind: int, fields: tuple[object, ...]) -> bytes:
    return encode_frame(kind, msgpack.packb(fields))


def committed_valid() -> dict[str, bytes]:
    """The valid frames as they lie in the repository."""
    return {path.stem: path.read_bytes() for path in sorted(VALID.glob("*.bin"))}


def committed_bad() -> list[Hostile]:
    """The hostile ones as they lie in the repository."""
    return [Hostile(path.name, path.read_bytes()) for path in sorted(BAD.glob("*.bin"))]


def write_missing() -> int:
    """Write the files that are not there yet; how many."""
    wanted = {VALID / f"{name}.bin": data for name, data in valid().items()}
    wanted |= {BAD / one.name: one.data for one in hostile()}
    missing = {path: data for path, data in wanted.items() if not path.exists()}
    for path, data in missing.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return len(missing)


if __name__ == "__main__":
    sys.stdout.write(f"{write_missing()} files written\n")
