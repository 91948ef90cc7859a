"""The client protocol as bytes: in any pieces, with anything wrong in them (CLP-2 to CLP-22)."""

import contextlib
from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import BadRequest, MessageTooLarge, QueueDisabled
from brokerd.protocol import client_frames as frames
from brokerd.protocol.admin_verbs import ADMIN_VERBS, POISON_VERBS, View
from brokerd.protocol.client_frames import (
    Answer,
    Cancel,
    ClientFrame,
    DaemonFrame,
    Done,
    Failed,
    Goodbye,
    Hello,
    Limits,
    MessageValue,
    Ping,
    Pong,
    Request,
    Unreadable,
    Violation,
    Welcome,
)
from brokerd.protocol.client_readers import AnswerReader, RequestReader
from brokerd.protocol.client_verbs import (
    MAX_GROUPS,
    MAX_MESSAGES,
    MAX_STATE,
    MAX_TIMER_MS,
    MAX_TOKEN,
    MAX_VERBS,
    MAX_WAIT_MS,
    VERB_NAMES,
    Alter,
    Apply,
    Begin,
    BeginDialog,
    Browse,
    CleanUp,
    Commit,
    Create,
    DialogOptions,
    Drop,
    End,
    GetGroup,
    GetState,
    Move,
    Objects,
    Receive,
    ResendPending,
    Rollback,
    RollbackOptions,
    RollbackTo,
    Savepoint,
    Send,
    SetState,
    SetTimer,
    Status,
    Transact,
    TransmissionStatus,
    TxOutcome,
    Verb,
    parse_request,
)
from brokerd.protocol.pairing_verbs import PAIRING_VERBS

ID = bytes(range(16))


def frame(*fields: object) -> bytes:
    payload: bytes = msgpack.packb(list(fields))
    return len(payload).to_bytes(4, "big") + payload


def requests(*data: bytes, span_limit: int = frames.SPAN_LIMIT) -> list[ClientFrame]:
    """What a logged-in daemon reads from these pieces."""
    reader = RequestReader(span_limit=span_limit)
    reader.login_done()
    return [found for piece in data for found in reader.feed(piece)]


def answers(*data: bytes) -> list[DaemonFrame]:
    reader = AnswerReader()
    reader.login_done()
    return [found for piece in data for found in reader.feed(piece)]


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


CLIENT: list[tuple[bytes, ClientFrame]] = [
    (
        frames.encode_request(1, None, "send", [ID, None, b"body"]),
        Request(1, None, "send", [ID, None, b"body"]),
    ),
    (frames.encode_request(2, 7, "begin", ()), Request(2, 7, "begin", [])),
    (frames.encode_cancel(2), Cancel(2)),
    (frames.encode_ping(9), Ping(9)),
]
DAEMON: list[tuple[bytes, DaemonFrame]] = [
    (frames.encode_done([1, 2]), Done([1, 2])),
    (frames.encode_answer(3, [b"x", None, "y", 1]), Answer(3, [b"x", None, "y", 1])),
    (
        frames.encode_failed(4, QueueDisabled("off", hint="turn it on")),
        Failed(4, "queue_disabled", "off", "turn it on", False, 9617),
    ),
    (frames.encode_pong(5), Pong(5)),
    (frames.encode_goodbye(frames.DRAINING), Goodbye("draining")),
]


@pytest.mark.rule("CLP-2", "CLP-7", "CLP-8")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 10_000])
def test_frames_survive_any_cutting(size: int) -> None:
    up = b"".join(data for data, _ in CLIENT)
    down = b"".join(data for data, _ in DAEMON)
    assert requests(*pieces(up, size)) == [value for _, value in CLIENT]
    assert answers(*pieces(down, size)) == [value for _, value in DAEMON]


@pytest.mark.rule("CLP-2")
@given(st.lists(st.integers(0, 400)), st.data())
def test_frames_survive_drawn_cutting(sizes: list[int], data: st.DataObject) -> None:
    sent = [Request(n, None, "send", [ID, None, b"x" * size]) for n, size in enumerate(sizes)]
    stream = b"".join(frames.encode_request(r.request, None, r.verb, r.args) for r in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    parts = [stream[a:b] for a, b in pairwise(bounds)]
    assert requests(*parts) == sent


@pytest.mark.rule("BI-R1", "CLP-5", "CLP-6")
@given(st.binary(max_size=300), st.integers(1, 50))
def test_noise_never_raises(noise: bytes, size: int) -> None:
    framed = len(noise).to_bytes(4, "big") + noise
    for data in (noise, framed):
        requests(*pieces(data, size))
        answers(*pieces(data, size))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@pytest.mark.rule("BI-R1", "CLP-6")
@given(st.lists(json_like, max_size=6))
def test_any_array_is_judged_without_raising(fields: list[object]) -> None:
    for kind in range(7):
        for found in requests(frame(kind, *fields)):
            if isinstance(found, Request):
                with contextlib.suppress(BadRequest):
                    parse_request(found.tx, found.verb, found.args)
        answers(frame(kind, *fields))


@pytest.mark.rule("BI-R1", "CLP-33")
@given(st.sampled_from(sorted(VERB_NAMES)), st.lists(json_like, max_size=6))
def test_any_arguments_are_judged_without_raising(verb: str, args: list[object]) -> None:
    for tx in (None, 1):
        with contextlib.suppress(BadRequest):
            parse_request(tx, verb, args)


@pytest.mark.rule("CLP-10", "CLP-11")
def test_hello_and_welcome() -> None:
    hello = RequestReader().feed(frames.encode_hello(ID, "shop", {"sdk": "x", "pid": 5}))
    assert hello == [Hello(0, 1, ID, "shop", {"sdk": "x", "pid": 5})]
    welcome = Welcome(0, 1, "one", ID, ID, "shop", ID, Limits(outstanding=5), 41)
    assert AnswerReader().feed(frames.encode_welcome(welcome)) == [welcome]


@pytest.mark.rule("CLP-11")
def test_unknown_keys_of_a_welcome_are_ignored() -> None:
    fields = {
        "version": 1,
        "instance": "i",
        "instance_id": ID,
        "boot_id": ID,
        "broker": "b",
        "broker_id": ID,
        "limits": {"outstanding": 9, "later": 1},
        "highest_token": -1,
        "later": [1],
    }
    (welcome,) = AnswerReader().feed(frame(0, 0, fields))
    assert isinstance(welcome, Welcome)
    assert (welcome.limits.outstanding, welcome.limits.frame) == (9, frames.FRAME_LIMIT)


@pytest.mark.rule("CLP-3")
def test_a_stranger_gets_four_kilobytes() -> None:
    room = frames.LOGIN_LIMIT + 4 - len(frames.encode_hello(ID, "b" * 300, {}))
    fits = frames.encode_hello(ID, "b" * (300 + room), {})
    assert len(fits) == 4 + 4096
    assert isinstance(RequestReader().feed(fits)[0], Hello)
    (refused,) = RequestReader().feed(frames.encode_hello(ID, "b" * (301 + room), {})[:4])
    assert isinstance(refused, Violation)


@pytest.mark.rule("CLP-5")
@pytest.mark.parametrize(
    "data",
    [
        frame(9, 1),
        frame(),
        frame(1),
        frame(1, "x", None, "begin", []),
        frame(1, -1, None, "begin", []),
        frame(1, True, None, "begin", []),
        frame(3),
        frame(4, None),
        frame(2, 1),
        frame(2, 1, "text"),
        frame(0, 0, None, "hello", [1, ID]),
        frame(0, 0, None, "hallo", [1, ID, "b", {}]),
        frame(0, 0, None, "hello", [1, "text", "b", {}]),
        frame(0, 0, None, "hello", 5),
        b"\0\0\0\1\xc1",
        b"\0\0\0\0",
        b"\0\0\0\2\x01\x01",
        b"\xff\xff\xff\xff",
        frame(1, 5, None, "begin", []) + frame(1, 5, None, "begin", []),
        frame(1, 5, None, "begin", []) + frame(1, 4, None, "begin", []),
        frame(2, 1, b"x") + frame(2, 2, b"x"),
        frame(2, 1, b"x") + frame(1, 2, None, "send", 1),
        frame(2, 1, b"x") + frame(1, 2, None, "send", [ID]),
        frame(2, 1, b"x") + frame(1, 2, None, "send"),
        frame(2, 1, b"x") + b"\0\0\0\6\x95\x01\x02\xc0\xa1\xff",
        frame(2, 1, b"x") + frame(1, 2, None, "send", [ID, None, b"x" * frames.FRAME_LIMIT]),
        frame(1, 2**63, None, "begin", []),
        frame(2, 2**63, b"x"),
        frame(3, 2**63),
        frame(3, 1, 1),
        frame(4, 1, 1),
        frame(2, 1, b"x", 1),
        frame(0, 1, None, "hello", [1, ID, "b", {}]),
        frame(0, 0, None, "hello", [1, ID, "b", {"load": 1.5}]),
        frame(0, 0, None, "hello", [1, ID, "b", [1]]),
        frame(0, 0, 1, "hello", [1, ID, "b", {}]),
        frame(0, 0, None, "hello", [1, ID, "b", {}]) * 2,
        ((64 << 20) + 1).to_bytes(4, "big"),
    ],
)
def test_violations_end_the_connection(data: bytes) -> None:
    *before, last = requests(data, frames.encode_ping(1))
    assert isinstance(last, Violation)
    assert not any(isinstance(each, Ping | Violation) for each in before)


@pytest.mark.rule("CLP-5")
@pytest.mark.parametrize(
    "data",
    [
        frame(9),
        frame(),
        frame(1, [True, -1]),
        frame(1, 5),
        frame(2, 1, None, 5),
        frame(3, 1, 5, "", "", False, None),
        frame(4, 1, b"x") + frame(4, 2, b"x"),
        frame(4, 1, b"x") + frame(2, 2, None, 1),
        frame(4, 1, b"x") + frame(2, 1, None, 2),
        frame(4, 1, b"x") + frame(2, 1, None),
        frame(4, 1, b"x") + frame(2, 2, None),
        frame(0, 0, {"version": 1}),
        b"\0\0\0\1\xc1",
        b"\0\x20\0\0" + b"x" * 40,
    ],
)
def test_a_daemon_that_breaks_the_protocol_is_noticed(data: bytes) -> None:
    found = answers(data, frames.encode_pong(1))
    assert isinstance(found[-1], Violation)


@pytest.mark.rule("CLP-6", "BI-R1")
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (frame(1, 7, None, "begin"), "a request is"),
        (frame(1, 7, 0, "begin", []), "tx"),
        (frame(1, 7, True, "begin", []), "tx"),
        (frame(1, 7, 2**63, "begin", []), "tx"),
        (frame(1, 7, None, 5, []), "verb"),
        (frame(1, 7, None, "begin", {}), "args"),
        (frame(1, 7, None, "begin", [{5: 1}]), "no msgpack array"),
        (frame(1, 7, None, "begin", 5), "5 bytes were announced and 0 came"),
        (frame(2, 7, b"ab") + frame(1, 7, None, "begin", 1), "1 bytes were announced and 2 came"),
        (frame(2, 7, b"ab") + frame(1, 7, None, "begin", []), "args"),
        (frame(2, 7, b"\xc1") + frame(1, 7, None, "begin", 1), "no msgpack value"),
        (b"\0\0\0\6\x95\x01\x07\xc0\xa1\xff", "no msgpack array"),
        (b"\0\0\0\7\x95\x01\x07\xc0\xd4\x05\x00", "no msgpack array"),
    ],
)
def test_a_bad_request_is_answered_and_the_connection_stays(data: bytes, named: str) -> None:
    bad, ping = requests(data, frames.encode_ping(1))
    assert isinstance(bad, Unreadable)
    assert bad.request == 7
    assert isinstance(bad.error, BadRequest)
    assert named in bad.error.message
    assert ping == Ping(1)


@pytest.mark.rule("CLP-4")
def test_request_numbers_have_gaps_and_an_end() -> None:
    numbers = [0, 1, 7, 2**32, 2**63 - 1]
    data = [frame(1, number, None, "begin", []) for number in numbers]
    assert [found.request for found in requests(*data) if isinstance(found, Request)] == numbers


@pytest.mark.rule("CLP-5", "CLP-6")
def test_a_frame_of_64_mib_is_dropped_and_a_longer_one_is_a_violation() -> None:
    head = frame(1, 7, None, "send", [ID, None, b"x" * 100])[4:36]
    reader = RequestReader()
    reader.login_done()
    (bad,) = reader.feed((64 << 20).to_bytes(4, "big") + head)
    assert isinstance(bad, Unreadable)
    for _ in range(63):
        assert reader.feed(bytes(1 << 20)) == []
    rest = bytes((1 << 20) - len(head))
    assert reader.feed(rest + frames.encode_ping(1)) == [Ping(1)]
    (found,) = reader.feed(((64 << 20) + 1).to_bytes(4, "big"))
    assert isinstance(found, Violation)


@pytest.mark.rule("CLP-6", "CLP-3")
@pytest.mark.parametrize("size", [37, 1000, 4_000_000])
def test_a_frame_over_the_limit_is_dropped_as_it_comes(size: int) -> None:
    long = frame(1, 7, None, "send", [ID, None, b"x" * frames.FRAME_LIMIT])
    bad, ping = requests(*pieces(long + frames.encode_ping(1), size))
    assert isinstance(bad, Unreadable)
    assert (bad.request, bad.error.code) == (7, "bad_request")
    assert ping == Ping(1)


@pytest.mark.rule("CLP-37", "CLP-6")
def test_a_bad_request_tells_its_transaction() -> None:
    long = frame(1, 1, 5, "send", [ID, None, b"x" * frames.FRAME_LIMIT])
    others = [frame(1, 2, 5, "begin"), frame(1, 3, 5, 0, []), frame(1, 4, "5", "begin", [])]
    spans = [frame(1, 6, 5, "begin", 3), frame(1, 7, None, "begin", 3)]
    found = [each for each in requests(long, *others, *spans) if isinstance(each, Unreadable)]
    assert [(each.request, each.tx) for each in found] == [
        *((1, 5), (2, 5), (3, 5), (4, None), (6, 5), (7, None))
    ]


@pytest.mark.rule("CLP-3")
def test_a_frame_at_the_limit_passes() -> None:
    room = frames.FRAME_LIMIT - len(frame(1, 7, None, "send", [ID, None, b"x" * 70_000])) + 4
    data = frames.encode_request(7, None, "send", [ID, None, b"x" * (70_000 + room)])
    assert len(data) == frames.FRAME_LIMIT + 4
    assert data[4] == 0x95
    assert isinstance(requests(data)[0], Request)
    longer = frames.encode_request(7, None, "send", [ID, None, b"x" * (70_001 + room)])
    (found,) = requests(longer)
    assert isinstance(found, Request)
    assert len(found.args[2]) == 70_001 + room


@pytest.mark.rule("CLP-20")
@pytest.mark.parametrize("size", [1000, 65_536, 10_000_000])
def test_long_values_come_out_whole(size: int) -> None:
    body = bytes(range(256)) * 10_000
    up = frames.encode_request(1, 3, "send", [ID, None, body]) + frames.encode_ping(1)
    assert requests(*pieces(up, size)) == [Request(1, 3, "send", [ID, None, body]), Ping(1)]
    down = frames.encode_answer(1, [[ID, body]] * 2) + frames.encode_done([2])
    assert answers(*pieces(down, size)) == [Answer(1, [[ID, body]] * 2), Done([2])]


@pytest.mark.rule("CLP-20", "REL-33")
@pytest.mark.parametrize("sizes", [[300_000], [1, 2_000_000, 7], [262_144, 262_144, 0], [5_000]])
def test_large_bodies_are_written_as_they_are(sizes: list[int]) -> None:
    value = [[ID, n, bytes(size) if size else None, "text"] for n, size in enumerate(sizes)]
    written = frames.encode_bulky(7, frames.Bulky([*value, "small", b"x" * 300_000]))
    bodies = [one[2] for one in value if frames.is_bulk(one[2])]
    for body in bodies:
        assert any(isinstance(one, memoryview) and one.obj is body for one in written)
    assert answers(b"".join(written)) == [Answer(7, [*value, "small", b"x" * 300_000])]


@pytest.mark.rule("CLP-21")
def test_small_frames_may_come_between_the_parts_of_an_answer() -> None:
    value = msgpack.packb([ID, b"body"])
    failed = frames.encode_failed(6, QueueDisabled("off"))
    data = [
        frame(4, 1, value[:5]),
        frames.encode_done([2, 3]),
        failed,
        frame(4, 1, value[5:9]),
        frames.encode_pong(8),
        frame(4, 1, value[9:]),
        frame(2, 1, None, len(value)),
    ]
    done, refused, pong, answer = answers(*data)
    assert isinstance(refused, Failed)
    assert (done, pong, answer) == (Done([2, 3]), Pong(8), Answer(1, [ID, b"body"]))


@pytest.mark.rule("CLP-21")
def test_small_frames_may_come_between_parts() -> None:
    args = msgpack.packb([ID, None, b"body"])
    data = [
        frame(2, 1, args[:5]),
        frames.encode_ping(8),
        frame(2, 1, args[5:]),
        frames.encode_cancel(0),
        frame(1, 1, None, "send", len(args)),
    ]
    assert requests(*data) == [Ping(8), Cancel(0), Request(1, None, "send", [ID, None, b"body"])]


@pytest.mark.rule("CLP-22")
def test_a_span_over_the_limit_is_refused_and_the_next_one_taken() -> None:
    long = frames.encode_request(1, None, "send", [ID, None, b"x" * 2_000_000])
    fits = frames.encode_request(2, None, "send", [ID, None, b"x" * 1_100_000])
    bad, good = requests(long, fits, span_limit=1_200_000)
    assert isinstance(bad, Unreadable)
    assert isinstance(bad.error, MessageTooLarge)
    assert isinstance(good, Request)


@pytest.mark.rule("CLP-22")
def test_a_client_joins_65_mib_and_no_more() -> None:
    def joined(size: int) -> DaemonFrame:
        reader = AnswerReader()
        reader.login_done()
        packed = b"\xc6" + (size - 5).to_bytes(4, "big") + bytes(size - 5)
        most = frames.FRAME_LIMIT - 100
        for at in range(0, size, most):
            assert reader.feed(frame(4, 1, packed[at : at + most])) == []
        (found,) = reader.feed(frame(2, 1, None, size))
        return found

    assert joined(65 << 20) == Answer(1, bytes((65 << 20) - 5))
    assert isinstance(joined((65 << 20) + 1), Violation)


@pytest.mark.rule("CLP-36")
def test_a_message_has_its_fields_in_order() -> None:
    value = MessageValue(ID, ID, ID, 3, "t", None, "s", "c", 4, 5, 6, 7, ID, "N")
    (found,) = answers(frames.encode_messages(1, [value]))
    assert found == Answer(1, [[ID, ID, ID, 3, "t", None, "s", "c", 4, 5, 6, 7, ID, "N", None]])


@pytest.mark.rule("CLP-8")
def test_a_message_of_an_error_is_cut_and_printable() -> None:
    (found,) = answers(frames.encode_failed(1, QueueDisabled("\udcff" + "x" * 5000)))
    assert isinstance(found, Failed)
    assert found.message.startswith("\\udcffxxx")
    assert len(found.message) < 2100


GOOD: list[tuple[int | None, str, list[object], Verb]] = [
    (1, "begin", [], Begin()),
    (1, "commit", [5], Commit(5)),
    (1, "commit", [MAX_TOKEN, ["busy"]], Commit(MAX_TOKEN, ["busy"])),
    (1, "rollback", [], Rollback()),
    (1, "rollback", [{}], Rollback(RollbackOptions())),
    (1, "rollback", [{"error": "why"}], Rollback(RollbackOptions(error="why"))),
    (1, "rollback", [{"counts": False}], Rollback(RollbackOptions(counts=False))),
    (1, "rollback", [{"retry_ms": 0}], Rollback(RollbackOptions(retry_ms=0))),
    (1, "rollback", [{"park": "for Ann"}], Rollback(RollbackOptions(park="for Ann"))),
    (1, "begin_dialog", [ID, "a", "b"], BeginDialog(ID, "a", "b")),
    (
        1,
        "begin_dialog",
        [ID, "a", "b", {"contract": "c", "broker_id": b"", "lifetime": 0, "encryption": True}],
        BeginDialog(ID, "a", "b", DialogOptions("c", b"", lifetime=0, encryption=True)),
    ),
    (1, "send", [ID], Send(ID)),
    (1, "send", [[ID, ID], "t", b""], Send([ID, ID], "t", b"")),
    (1, "receive", ["q"], Receive("q")),
    (1, "receive", ["q", 0, ID, None, -1], Receive("q", 0, ID, None, -1)),
    (1, "receive", ["q", 1_000_000, None, ID], Receive("q", MAX_MESSAGES, None, ID)),
    (
        1,
        "receive",
        ["q", None, None, None, 2**31 - 1, None, 1000],
        Receive("q", wait_ms=MAX_WAIT_MS, groups=MAX_GROUPS),
    ),
    (None, "receive", ["q", None, None, None, 0, 7], Receive("q", wait_ms=0, token=7)),
    (None, "receive", ["q", None, None, None, None, 0], Receive("q", token=0)),
    (1, "end", [ID, 5, "why"], End(ID, 5, "why")),
    (1, "end", [[ID, ID], None, None], End([ID, ID])),
    (1, "get_state", [ID], GetState(ID)),
    (1, "get_state", [ID, True], GetState(ID, True)),
    (1, "get_group", ["q"], GetGroup("q")),
    (1, "get_group", ["q", -1], GetGroup("q", -1)),
    (1, "move", [ID, ID], Move(ID, ID)),
    (1, "savepoint", [3], Savepoint(3)),
    (1, "rollback_to", [3], RollbackTo(3)),
    (1, "set_timer", [ID], SetTimer(ID)),
    (1, "set_timer", [ID, 1], SetTimer(ID, 1)),
    (1, "set_timer", [ID, (2**31 - 1) * 1000, "n"], SetTimer(ID, MAX_TIMER_MS, "n")),
    (1, "set_timer", [ID, None, "n" * 128], SetTimer(ID, None, "n" * 128)),
    (1, "resend_pending", [ID, ID], ResendPending(ID, ID)),
    (None, "transmission_status", [ID], TransmissionStatus(ID)),
    (None, "clean_up", [ID, "why"], CleanUp(ID, "why")),
    (None, "clean_up", [ID, "why", True], CleanUp(ID, "why", True)),
    (None, "objects", [], Objects()),
    (None, "objects", ["queue"], Objects("queue")),
    (None, "create", ["queue", {"name": "q"}], Create("queue", {"name": "q"})),
    (None, "alter", ["queue", {"name": "q"}, True], Alter("queue", {"name": "q"}, True)),
    (None, "drop", ["queue", "q", True], Drop("queue", "q", True)),
    (None, "browse", ["q"], Browse("q")),
    (None, "browse", ["q", None, 1000], Browse("q", None, 1000)),
    (None, "browse", ["q", [0, 5], 9, False], Browse("q", (0, 5), 9, False)),
    (1, "set_state", [ID, b"x" * MAX_STATE], SetState(ID, b"x" * MAX_STATE)),
    (1, "set_state", [ID, None], SetState(ID, None)),
    (
        None,
        "transact",
        [4, [["send", [ID]], ["end", [ID]]]],
        Transact(4, (Send(ID), End(ID))),
    ),
    (
        None,
        "transact",
        [
            4,
            [
                ["begin_dialog", [ID, "a", "b"]],
                ["move", [ID, ID]],
                ["set_timer", [ID, 1]],
                ["set_state", [ID, b"s"]],
            ],
        ],
        Transact(4, (BeginDialog(ID, "a", "b"), Move(ID, ID), SetTimer(ID, 1), SetState(ID, b"s"))),
    ),
    (None, "tx_outcome", [4], TxOutcome(4)),
    (None, "status", [], Status()),
    (None, "apply", [{"queue": {}}, True], Apply({"queue": {}}, True)),
    (None, "view", ["queues"], View("queues")),
]


@pytest.mark.rule("CLP-33", "CLP-34", "CLP-35", "CLP-100", "CLP-116")
@pytest.mark.parametrize(("tx", "verb", "args", "value"), GOOD)
def test_verbs_and_their_arguments(
    tx: int | None, verb: str, args: list[object], value: Verb
) -> None:
    assert parse_request(tx, verb, args) == value


TRANSACTABLE = {"begin_dialog", "send", "end", "move", "set_timer", "set_state"}


@pytest.mark.rule("CLP-33", "CLP-34")
def test_every_verb_has_a_row() -> None:
    elsewhere = {*ADMIN_VERBS, *POISON_VERBS, *PAIRING_VERBS}
    assert {verb for _, verb, _, _ in GOOD} | elsewhere == VERB_NAMES


@pytest.mark.rule("BI-R1", "BI-R6", "CLP-6", "CLP-33", "CLP-34", "CLP-35", "CLP-100", "CLP-115")
@pytest.mark.parametrize(
    ("tx", "verb", "args", "named"),
    [
        (None, "drop", [], "drop"),
        (None, "begin", [], "needs a transaction"),
        (1, "transact", [1, [["send", [ID]]]], "comes without"),
        (1, "begin", [1], "begin"),
        (1, "commit", [], "commit"),
        (1, "commit", [-1], "token"),
        (1, "commit", [2**63], "token"),
        (1, "commit", [True], "token"),
        (1, "send", [ID[:15]], "handles"),
        (1, "send", [[]], "handles"),
        (1, "send", [[ID, b"x"]], "handles"),
        (1, "send", [ID, 5], "message_type"),
        (1, "send", [ID, None, "text"], "body"),
        (1, "send", [ID, None, b"", 1], "send"),
        (1, "begin_dialog", [ID, "a"], "begin_dialog"),
        (1, "begin_dialog", [ID, "a", "b", {"priority": 5}], "priority"),
        (1, "begin_dialog", [ID, "a", "b", {"lifetime": 1.5}], "lifetime"),
        (1, "begin_dialog", [ID, "a", "b", {"broker_id": b"1"}], "broker_id"),
        (1, "begin_dialog", [ID, "a", "b", {"related_group": b"1"}], "related_group"),
        (1, "receive", ["q", -1], "max_messages"),
        (1, "get_group", ["q", -2], "wait_ms"),
        (None, "get_group", ["q"], "needs a transaction"),
        (1, "move", [ID, ID[:15]], "group_id"),
        (1, "savepoint", [-1], "number"),
        (1, "get_state", [ID, 1], "take_lock"),
        (1, "browse", ["q"], "comes without"),
        (None, "browse", ["q", [0]], "after"),
        (None, "browse", ["q", None, 0], "limit"),
        (None, "browse", ["q", None, 1001], "limit"),
        (1, "receive", ["q", 10**9], "max_messages"),
        (1, "receive", ["q", 1_000_001], "max_messages"),
        (1, "receive", ["q", None, None, None, 2**31], "wait_ms"),
        (1, "receive", ["q", None, None, None, None, None, 0], "groups"),
        (1, "receive", ["q", None, None, None, None, None, 1001], "groups"),
        (None, "receive", ["q", None, None, None, -1, 5], "wait_ms"),
        (1, "get_group", ["q", 2**31], "wait_ms"),
        (1, "rollback", [{"why": "x"}], "why"),
        (1, "rollback", [{"retry_ms": -1}], "retry_ms"),
        (1, "rollback", ["x"], "options"),
        (1, "commit", [1, "busy"], "not_counted"),
        (1, "set_timer", [ID, 0], "after_ms"),
        (1, "set_timer", [ID, (2**31 - 1) * 1000 + 1], "after_ms"),
        (1, "set_timer", [ID, 1, ""], "name"),
        (1, "set_timer", [ID, 1, "n" * 129], "name"),
        (None, "set_timer", [ID, 1], "needs a transaction"),
        (None, "resend_pending", [ID, ID], "needs a transaction"),
        (1, "clean_up", [ID, "why"], "comes without"),
        (None, "clean_up", [ID], "clean_up"),
        (1, "transmission_status", [ID], "comes without"),
        (1, "objects", [], "comes without"),
        (1, "create", ["queue", {}], "comes without"),
        (None, "create", ["queue", "q"], "object"),
        (None, "browse", ["q", [10, 5]], "after"),
        (1, "receive", ["q", None, None, None, 10**18], "wait_ms"),
        (1, "receive", ["q", None, None, None, -2], "wait_ms"),
        (1, "receive", ["q", None, None, None, float("nan")], "wait_ms"),
        (1, "receive", ["q", None, b"short"], "conversation"),
        (1, "receive", ["q", None, None, None, None, 5], "token"),
        (None, "receive", ["q"], "token"),
        (None, "receive", ["q", None, None, None, 5, 5], "wait_ms"),
        (1, "set_state", [ID, b"x" * (MAX_STATE + 1)], "state"),
        (None, "transact", [1, []], "verbs"),
        (None, "transact", [1, [["send", [ID]]] * (MAX_VERBS + 1)], "verbs"),
        *(
            (None, "transact", [1, [[verb, []]]], verb)
            for verb in sorted(VERB_NAMES - TRANSACTABLE)
        ),
        (None, "transact", [1, [["send", [b"x"]]]], "handles"),
        (None, "transact", [1, [["send"]]], "verbs"),
        (None, "apply", [[], True], "objects"),
    ],
)
def test_wrong_arguments_are_named(
    tx: int | None, verb: str, args: list[object], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        parse_request(tx, verb, args)


@pytest.mark.rule("CLP-2")
def test_bytes_are_not_copied_again_and_again() -> None:
    """A frame in a thousand pieces is joined once: what is kept are the pieces themselves."""
    reader = RequestReader()
    reader.login_done()
    data = frames.encode_request(1, None, "send", [ID, None, b"x" * 1_000_000])
    parts = pieces(data, 1000)
    for part in parts[:-1]:
        assert reader.feed(part) == []
    kept = reader._pieces  # how it is kept is the point
    assert len(kept) == len(parts) - 1
    assert all(a is b for a, b in zip(kept, parts, strict=False))
    assert isinstance(reader.feed(parts[-1])[0], Request)
