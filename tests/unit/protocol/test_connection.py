"""One connection's machine: login, what is out of order, limits, keepalive, goodbye."""

from typing import Any

import msgspec
import pytest

from brokerd.ids import BootId, BrokerId, InstanceId
from brokerd.protocol.arbitration import Decision, Rival, arbitrate, keeps_new
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import (
    AskArbitration,
    AskSettlement,
    CameOnline,
    Closed,
    Limits,
    LoginState,
    Noticed,
    Outcome,
    ProbeAnswered,
    Received,
    Refusal,
    State,
    Write,
)
from brokerd.protocol.frames import FRAME_LIMIT, FrameReader, Kind, boxcar, encode_frame
from brokerd.protocol.neighbour import (
    MAJOR,
    Arbitrate,
    Goodbye,
    GoodbyeReason,
    Hello,
    Notice,
    Ping,
    Pong,
    Reject,
    RejectReason,
    Verdict,
    decode,
    encode,
)
from brokerd.protocol.role import RoleAnswer, RoleQuestion

ME = Hello(InstanceId(b"a" * 16), BootId(b"1" * 16), port=4022)
PEER = Hello(InstanceId(b"b" * 16), BootId(b"2" * 16), port=4023)
EMPTY_BOXCAR = b"".join(boxcar([]))
ROLE = RoleQuestion(BrokerId(b"k" * 16), 7)
NOTICE = Notice(b"c" * 16, True, 3, "no_route")  # type: ignore[arg-type]


def machine(*, accepting: bool, authorise=lambda peer: None) -> Connection:
    return Connection(accepting=accepting, hello=ME, limits=Limits(), authorise=authorise)


def at(phase: str, **how: Any) -> Connection:
    """A machine brought to a phase, at moment 100."""
    role, _, phase = phase.partition(" ")
    made = machine(accepting=role == "accept", **how)
    made.connected(100.0)
    if phase in ("greeted", "online", "refused", "leaving"):
        feed(made, encode(PEER))
    if phase in ("online", "leaving"):
        come_online(made)
    if phase == "refused":
        made.arbitrated(Verdict.LOST, 100.0)
    if phase == "leaving":
        made.say_goodbye(GoodbyeReason.IDLE, 100.0)
    return made


def come_online(made: Connection) -> None:
    if made.accepting:
        made.arbitrated(Verdict.WON, 100.0)
    else:
        feed(made, encode(Arbitrate(Verdict.WON)))
        made.settled(100.0, keep=True)


def feed(made: Connection, data: bytes, now: float = 100.0) -> list[Any]:
    return list(made.receive(data, now))


def written(effects: list[Any]) -> list[Any]:
    found: list[Any] = []
    for effect in effects:
        if isinstance(effect, Write):
            found += [decode(k, p) for k, p in FrameReader(FRAME_LIMIT).feed(effect.data)]
    return found


def end_of(effects: list[Any]) -> Closed:
    assert isinstance(effects[-1], Closed)
    return effects[-1]


@pytest.mark.rule("TRN-5", "TRN-6", "TRN-7")
def test_the_caller_logs_in() -> None:
    made = machine(accepting=False)
    assert (made.state, made.login_state) == (State.NEW, LoginState.INITIAL)
    made.connecting()
    assert made.state is State.CONNECTING
    assert written(made.connected(100.0)) == [ME]
    assert (made.state, made.login_state) == (State.CONNECTED, LoginState.WAIT_LOGIN_NEGOTIATE)
    assert feed(made, encode(PEER)) == []
    assert made.login_state is LoginState.WAIT_ARBITRATION
    assert feed(made, encode(Arbitrate(Verdict.WON))) == [AskSettlement(PEER, False)]
    assert made.settled(100.0, keep=True) == [CameOnline(PEER)]
    assert (made.state, made.login_state) == (State.LOGGED_IN, LoginState.ONLINE)


@pytest.mark.rule("TRN-5", "TRN-6", "TRN-7")
def test_the_accepting_side_logs_in() -> None:
    made = machine(accepting=True)
    assert made.connected(100.0) == []
    effects = feed(made, encode(PEER))
    assert written(effects) == [ME]
    assert effects[-1] == AskArbitration(PEER)
    effects = made.arbitrated(Verdict.WON, 100.0)
    assert written(effects) == [Arbitrate(Verdict.WON)]
    assert effects[-1] == CameOnline(PEER)
    assert made.is_online


ALLOWED = {
    "connect new": {"hello", "reject", "goodbye"},
    "accept new": {"hello"},
    "connect greeted": {"reject", "goodbye", "arbitrate"},
    "accept greeted": {"reject", "goodbye"},
    "connect online": {"reject", "goodbye", "ping", "pong", "notice", "boxcar", "role", "brokers"},
    "accept online": {"reject", "goodbye", "ping", "pong", "notice", "boxcar", "role", "brokers"},
    "accept refused": {"reject", "goodbye"},
    "connect leaving": {"reject", "goodbye", "ping", "pong", "notice", "boxcar", "role", "brokers"},
}
FRAMES = {
    "hello": encode(PEER),
    "reject": encode(Reject("draining", "initial")),
    "arbitrate": encode(Arbitrate(Verdict.WON)),
    "ping": encode(Ping(1)),
    "pong": encode(Pong(1)),
    "goodbye": encode(Goodbye("idle")),
    "notice": encode(NOTICE),
    "boxcar": EMPTY_BOXCAR,
    "role": encode(ROLE),
    "brokers": encode(BrokersHere()),
    "unknown": encode_frame(77, b"\x90"),
}


@pytest.mark.rule("TRN-7", "TRN-8", "TRN-44", "TRN-45", "BI-F5", "NBT-20")
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("phase", ALLOWED)
def test_every_frame_in_every_phase(phase: str, frame: str) -> None:
    made = at(phase)
    effects = feed(made, FRAMES[frame])
    refused = any(
        isinstance(f, Reject) and f.reason == RejectReason.PROTOCOL for f in written(effects)
    )
    assert refused == (frame not in ALLOWED[phase])
    if refused:
        logged_in = phase.endswith(("online", "leaving"))
        wanted = Outcome.LOST if logged_in else Outcome.FAILED
        assert end_of(effects).outcome is wanted
        assert made.is_closed
        assert feed(made, FRAMES["hello"]) == []


@pytest.mark.rule("RTE-55")
@pytest.mark.parametrize("frame", [ROLE, RoleAnswer(BrokerId(b"k" * 16), "principal", 8)])
def test_a_role_is_asked_and_told(frame: RoleQuestion | RoleAnswer) -> None:
    made = at("accept online")
    assert feed(made, encode(frame)) == [Noticed(frame)]
    assert end_of(feed(made, encode_frame(Kind.ROLE, b"\x90"))).outcome is Outcome.LOST


@pytest.mark.rule("TRN-10", "TRN-45")
def test_unknown_kinds_of_a_newer_version_are_ignored() -> None:
    made = machine(accepting=True)
    made.connected(100.0)
    feed(made, encode(msgspec.structs.replace(PEER, minor=9)))
    made.arbitrated(Verdict.WON, 100.0)
    assert feed(made, FRAMES["unknown"] + encode(Ping(4))) == [Write(encode(Pong(4)))]


@pytest.mark.rule("TRN-10", "NBT-20")
@pytest.mark.parametrize("accepting", [True, False])
def test_another_major_version_is_refused(accepting: bool) -> None:
    made = machine(accepting=accepting)
    made.connected(100.0)
    effects = feed(made, encode(msgspec.structs.replace(PEER, major=MAJOR + 1)))
    reject = Reject("no_compatible_protocol", "wait_login_negotiate")
    assert written(effects) == [reject]
    assert end_of(effects).key == "handshake_failed"


@pytest.mark.rule("TRN-10")
def test_unknown_options_are_ignored() -> None:
    made = machine(accepting=True)
    made.connected(100.0)
    hello = msgspec.structs.replace(PEER, options={"later": "x"}, minor=7)
    assert feed(made, encode(hello))[-1] == AskArbitration(hello)


@pytest.mark.rule("NBT-20", "XMT-19", "SEC-6", "SEC-10")
@pytest.mark.parametrize(
    ("reason", "key"),
    [
        (RejectReason.NOT_AUTHENTICATED, "auth_failed"),
        (RejectReason.NOT_AUTHORISED, "refused"),
        (RejectReason.DRAINING, "handshake_failed"),
        (RejectReason.ENDPOINT_DISABLED, "handshake_failed"),
        (RejectReason.NO_COMPATIBLE_PROTOCOL, "handshake_failed"),
        (RejectReason.PROTOCOL, "handshake_failed"),
    ],
)
def test_each_refusal_reaches_the_caller(reason: RejectReason, key: str) -> None:
    refuser = at("accept new", authorise=lambda peer: Refusal(reason))
    effects = feed(refuser, encode(PEER))
    assert end_of(effects).outcome is Outcome.FAILED
    (reject,) = written(effects)
    caller = at("connect new")
    end = end_of(feed(caller, encode(reject)))
    assert (end.outcome, end.key) == (Outcome.FAILED, key)
    assert reason.value in end.detail
    assert "wait_validation" in end.detail


@pytest.mark.rule("SEC-10")
def test_plain_text_from_elsewhere_is_refused_before_any_hello() -> None:
    for accepting in (True, False):
        effects = machine(accepting=accepting).connected(
            0.0, Refusal(RejectReason.NOT_AUTHENTICATED)
        )
        (reject,) = written(effects)
        assert reject.reason == "not_authenticated"
        assert end_of(effects).key == "auth_failed"


@pytest.mark.rule("TRN-26")
@pytest.mark.parametrize("accepting", [True, False])
def test_the_own_instance_id_closes(accepting: bool) -> None:
    made = machine(accepting=accepting)
    made.connected(100.0)
    assert end_of(feed(made, encode(ME))).outcome is Outcome.SELF


@pytest.mark.rule("TRN-23")
def test_a_lost_arbitration_is_no_failure() -> None:
    caller = at("connect greeted")
    effects = feed(caller, encode(Arbitrate(Verdict.LOST)))
    assert written(effects) == [Goodbye("arbitration")]
    assert end_of(effects).outcome is Outcome.ARBITRATION
    refused = at("accept refused")
    effects = feed(refused, encode(Goodbye("arbitration")))
    assert end_of(effects).outcome is Outcome.ARBITRATION


@pytest.mark.rule("TRN-24", "TRN-27")
def test_a_granted_connection_may_be_left_for_another() -> None:
    made = at("connect greeted")
    assert feed(made, encode(Arbitrate(Verdict.WON_OVER_STALE))) == [AskSettlement(PEER, True)]
    assert written(made.settled(100.0, keep=False)) == [Goodbye("arbitration")]
    assert not made.is_online
    assert feed(made, EMPTY_BOXCAR) == [Received([], 0)]  # what was on its way still counts
    assert end_of(feed(made, encode(Goodbye("arbitration")))).outcome is Outcome.ARBITRATION


@pytest.mark.rule("TRN-5", "TRN-6", "TRN-9")
@pytest.mark.parametrize("phase", ["connect new", "accept new", "connect greeted"])
def test_a_login_takes_at_most_ten_seconds(phase: str) -> None:
    made = at(phase)
    assert made.next_deadline() == 110.0
    assert made.timer_due(109.9) == []
    end = end_of(made.timer_due(110.0))
    assert (end.outcome, end.key) == (Outcome.FAILED, "handshake_failed")
    assert (made.state, made.login_state) == (State.CLOSED, LoginState.ERROR)
    assert made.error == end.detail != ""
    assert made.next_deadline() is None


@pytest.mark.rule("TRN-5", "TRN-6")
def test_the_numbers_of_the_states_are_those_of_service_broker() -> None:
    assert [(one.name, one.value) for one in State] == [
        ("NEW", 1),
        ("CONNECTING", 2),
        ("CONNECTED", 3),
        ("LOGGED_IN", 4),
        ("CLOSED", 5),
    ]
    assert [(one.name, one.value) for one in LoginState] == [
        ("INITIAL", 0),
        ("WAIT_LOGIN_NEGOTIATE", 1),
        ("WAIT_PRE_MASTER_SECRET", 9),
        ("WAIT_VALIDATION", 10),
        ("WAIT_ARBITRATION", 11),
        ("ONLINE", 12),
        ("ERROR", 13),
    ]


@pytest.mark.rule("TRN-30")
def test_silence_after_sending_is_pinged_then_a_loss() -> None:
    made = at("connect online")
    assert made.next_deadline() is None
    made.sent(200.0)
    made.sent(210.0)
    assert made.next_deadline() == 220.0
    assert written(made.timer_due(220.0)) == [Ping(1)]
    assert made.next_deadline() == 230.0
    end = end_of(made.timer_due(230.0))
    assert (end.outcome, end.key) == (Outcome.LOST, "connection_lost")


@pytest.mark.rule("TRN-29", "TRN-30")
def test_any_frame_answers_and_keepalive_is_no_traffic() -> None:
    made = at("connect online")
    made.sent(200.0)
    made.timer_due(220.0)
    assert feed(made, encode(Pong(1)), 225.0) == []
    assert made.next_deadline() is None
    assert written(feed(made, encode(Ping(9)), 226.0)) == [Pong(9)]
    assert made.last_activity == 200.0
    feed(made, EMPTY_BOXCAR, 227.0)
    assert made.last_activity == 227.0


@pytest.mark.rule("TRN-30", "TRN-34")
def test_nothing_is_concluded_from_silence_while_reading_is_paused() -> None:
    made = at("connect online")
    made.sent(200.0)
    made.deaf(deaf=True, now=201.0)
    assert made.next_deadline() is None
    made.deaf(deaf=False, now=300.0)
    assert made.next_deadline() == 320.0


@pytest.mark.rule("TRN-25")
def test_a_probe_is_answered_by_any_bytes_or_fails_after_five_seconds() -> None:
    alive = at("accept online")
    assert written(alive.probe(200.0)) == [Ping(1)]
    assert alive.probe(201.0) == []
    assert feed(alive, EMPTY_BOXCAR, 202.0)[0] == ProbeAnswered()
    dead = at("accept online")
    dead.probe(200.0)
    assert dead.timer_due(204.9) == []
    assert end_of(dead.timer_due(205.0)).outcome is Outcome.LOST


@pytest.mark.rule("TRN-18")
def test_goodbye_both_ways_is_orderly() -> None:
    leaving, staying = at("connect online"), at("accept online")
    effects = leaving.say_goodbye(GoodbyeReason.IDLE, 100.0)
    assert not leaving.is_online
    assert leaving.say_goodbye(GoodbyeReason.DRAIN, 100.0) == []
    (goodbye,) = written(effects)
    answer = feed(staying, encode(goodbye))
    assert written(answer) == [Goodbye("idle")]
    assert end_of(answer).outcome is Outcome.ORDERLY
    assert (staying.state, staying.login_state, staying.error) == (
        State.CLOSED,
        LoginState.ONLINE,
        "",
    )
    assert end_of(feed(leaving, encode(Goodbye("idle")))).outcome is Outcome.ORDERLY


@pytest.mark.rule("TRN-18", "END-5")
def test_an_unanswered_goodbye_ends_after_its_limit() -> None:
    made = at("connect leaving")
    assert made.next_deadline() == 105.0
    assert end_of(made.timer_due(105.0)).outcome is Outcome.ORDERLY


@pytest.mark.rule("NBT-20", "END-5")
def test_draining_refuses_a_login_that_is_under_way() -> None:
    effects = at("accept greeted").say_goodbye(GoodbyeReason.DRAIN, 100.0)
    assert written(effects) == [Reject("draining", "wait_arbitration")]


@pytest.mark.rule("TRN-17", "TRN-18")
@pytest.mark.parametrize(
    ("phase", "outcome", "key"),
    [
        ("connect new", Outcome.FAILED, "handshake_failed"),
        ("connect greeted", Outcome.FAILED, "handshake_failed"),
        ("accept new", Outcome.FAILED, "handshake_failed"),
        ("accept refused", Outcome.ARBITRATION, ""),
        ("connect online", Outcome.LOST, "connection_lost"),
        ("accept online", Outcome.LOST, "connection_lost"),
        ("connect leaving", Outcome.ORDERLY, ""),
    ],
)
def test_what_a_broken_stream_means(phase: str, outcome: Outcome, key: str) -> None:
    made = at(phase)
    end = end_of(made.broken("reset"))
    assert (end.outcome, end.key) == (outcome, key)
    assert made.broken("again") == []


@pytest.mark.rule("TRN-33", "BI-F2")
def test_large_frames_only_when_online() -> None:
    large = encode_frame(Kind.BOXCAR, bytes(5000))
    early = end_of(feed(at("accept greeted"), large))
    assert early.outcome is Outcome.FAILED
    assert "length 5001" in early.detail
    late = end_of(feed(at("accept online"), large))
    assert "length" not in late.detail  # taken as a frame, then its items are nonsense


@pytest.mark.rule("NBT-4")
def test_a_notice_is_handed_on() -> None:
    made = at("connect online")
    assert feed(made, encode(NOTICE), 150.0) == [Noticed(NOTICE)]
    assert made.last_activity == 150.0


SMALL, LARGE = InstanceId(b"a" * 16), InstanceId(b"z" * 16)
OURS_LOGIN, THEIRS_LOGIN = Rival(True, False), Rival(False, False)
OURS_ONLINE, THEIRS_ONLINE = Rival(True, True), Rival(False, True)


@pytest.mark.rule("TRN-23", "TRN-24", "TRN-25")
@pytest.mark.parametrize(
    ("rivals", "smaller_decides", "larger_decides"),
    [
        ([], Decision.GRANT, Decision.GRANT),
        ([THEIRS_LOGIN], Decision.GRANT, Decision.GRANT),
        ([OURS_LOGIN], Decision.REFUSE, Decision.GRANT),
        ([OURS_LOGIN, THEIRS_LOGIN], Decision.REFUSE, Decision.GRANT),
        ([OURS_ONLINE], Decision.PROBE, Decision.PROBE),
        ([THEIRS_ONLINE], Decision.PROBE, Decision.PROBE),
        ([OURS_LOGIN, THEIRS_ONLINE], Decision.PROBE, Decision.PROBE),
    ],
)
def test_the_accepting_side_decides(rivals: list[Rival], smaller_decides, larger_decides) -> None:
    assert arbitrate(me=SMALL, peer=LARGE, rivals=rivals) is smaller_decides
    assert arbitrate(me=LARGE, peer=SMALL, rivals=rivals) is larger_decides


@pytest.mark.rule("TRN-24", "TRN-25")
@pytest.mark.parametrize(
    ("rivals", "over_stale", "smaller_keeps", "larger_keeps"),
    [
        ([], False, True, True),
        ([OURS_ONLINE], False, True, True),
        ([THEIRS_LOGIN], False, True, True),
        ([THEIRS_ONLINE], False, True, False),
        ([THEIRS_ONLINE], True, True, True),
    ],
)
def test_crossing_grants_settle_alike(
    rivals: list[Rival], over_stale: bool, smaller_keeps: bool, larger_keeps: bool
) -> None:
    for me, peer, keeps in ((SMALL, LARGE, smaller_keeps), (LARGE, SMALL, larger_keeps)):
        assert keeps_new(me=me, peer=peer, over_stale=over_stale, rivals=rivals) is keeps
