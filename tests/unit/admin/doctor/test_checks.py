"""The doctor: each fault gives its finding and no other, with the command that mends it."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec.structs import fields, replace

import brokerd
from brokerd.admin.doctor.checks import SKEW, examine
from brokerd.admin.doctor.codes import CODES
from brokerd.admin.doctor.findings import RECENT, Finding, Level, Row, chosen, problem, status_of
from brokerd.admin.doctor.pair_checks import (
    FarSeen,
    PairSeen,
    ServiceSeen,
    examine_pair,
    examine_service,
)
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.admin.views.columns import COLUMNS
from brokerd.cli.main import cli
from brokerd.client.admin_answers import PingAnswer, PingStep
from brokerd.clock import SECOND, Instant
from brokerd.config.exposure import beyond_this_machine
from brokerd.config.settings import Clients, HttpSettings, Transport
from brokerd.errors import FOUND_BY_BROKERS
from brokerd.model import CONFIGURATION_SERVICE
from brokerd.telemetry.status import (
    CertificateStatus,
    ClockApart,
    DestinationStatus,
    DoorStatus,
    DuplicateStatus,
    FailedDialogs,
    FileProblem,
    InstanceStatus,
    PublicGrant,
    QueueStatus,
    RefusedLogins,
    ServerStatus,
    StoreStatus,
    foreign_key,
)
from brokerd.transport.door import DESCRIPTORS, TEXTS

NOW = Instant(10_000 * SECOND)
MIB = 1 << 20


def route(name: str, **more: Any) -> Row:
    usual = {
        "name": name,
        "remote_service_name": None,
        "address": "LOCAL",
        "mirror_address": None,
        "is_expired": False,
        "is_dynamic": False,
        "mirror_state": None,
        "current_principal": None,
    }
    return usual | more


def service(name: str, queue: str = "q") -> Row:
    return {"name": name, "service_queue_id": queue}


def queue(**more: Any) -> Row:
    on = {"is_enqueue_enabled": True, "is_receive_enabled": True, "status_reason": None}
    return {"name": "q", **on, **more}


BROKER = {
    "name": "main",
    "broker_id": "1",
    "is_broker_enabled": True,
    "disabled_reason": None,
    "start_failure": "",
}
FAR = route("far", remote_service_name="far", address="tcp://far:1")
ENDPOINT = {
    "state": "STARTED",
    "listen_error": None,
    "port": 1,
    "listener_address": ["tcp://0.0.0.0:1"],
}
TO = {
    "address": "tcp://far:1",
    "state": "online",
    "consecutive_failures": 0,
    "last_error": "",
    "pending_messages": 0,
}
MAIN = BrokerSeen(
    name="main",
    services=[service("near"), service("urn:brokerd:x")],
    routes=[route("AutoCreatedLocal"), FAR],
    queues=[queue()],
    contracts=[{"name": "talk"}],
    usages=[{"service_id": "near", "service_contract_id": "talk"}],
    message_usages=[
        {
            "service_contract_id": "talk",
            "message_type_id": "Ask",
            "is_sent_by_initiator": True,
            "is_sent_by_target": False,
        }
    ],
    message_types=[{"name": "Ask", "validation_desc": "none"}],
)
HEALTHY = Seen(
    status=InstanceStatus(
        instance="here",
        now=NOW,
        queues=(QueueStatus(name="q", broker="main", ready=3),),
        stores=(StoreStatus(broker="main", path="/d/main.db", free_bytes=600 * MIB),),
        min_free=256 * MIB,
        open_files=900,
        max_files=1000,
        destinations=(DestinationStatus(address="tcp://far:1", state="online", messages=1),),
    ),
    now=NOW,
    brokers=[MAIN],
    known=[BROKER],
    endpoint=ENDPOINT,
    destinations=[TO],
    instance_routes=[route("AutoCreatedLocal")],
    forwarder={"is_forwarding": True, "limit_bytes": 100, "used_bytes": 50},
    dispatching={"dropped_by_reason": {}, "memory_full_at": None},
)


def cure(found: Finding) -> str:
    """What helps, in words and commands."""
    return "; ".join((found.mend, *found.commands))


def told(**more: Any) -> Seen:
    return replace(HEALTHY, status=replace(HEALTHY.status, **more))


def main(**more: Any) -> Seen:
    return replace(HEALTHY, brokers=[replace(MAIN, **more)])


def waiting(**more: Any) -> DestinationStatus:
    usual = {"address": "tcp://far:1", "state": "online", "messages": 3}
    return DestinationStatus(**usual | {"status_key": "awaiting_ack"} | more)


PARKED = {
    "conversation_group_id": "g",
    "queue": "q",
    "state": "parked",
    "messages": 2,
    "park_reason": "poison",
    "last_error": "Boom",
}
STUCK = {
    "conversation_handle": "h",
    "to_service_name": "far",
    "enqueue_time": 9_000 * SECOND,
    "transmission_status": "the peer is silent",
    "attempts": 3,
    "next_attempt_at": None,
    "status_key": "awaiting_ack",
}
FAULTS: list[tuple[str, Seen, str, str, str]] = [
    ("D02", replace(HEALTHY, known=[BROKER | {"is_broker_enabled": False,
     "disabled_reason": "foreign_fingerprint"}]), "broker main", "foreign", "broker enable main"),
    ("D03", replace(HEALTHY, known=[BROKER, BROKER | {"name": "copy"}]),
     "broker copy", "main", "broker new-id copy"),
    ("D06", told(queues=(QueueStatus(name="q", broker="main", status="off", ready=3),)),
     "queue q of broker main", "off, with 3", "status=on"),
    ("D10", told(destinations=(DestinationStatus(address="", state="delayed", messages=2,
     status_key="no_route", broker="main", service="other", dialog="h"),)), "no_route",
     "2 messages", "route create NAME service=other address=TCP://HOST:PORT --broker main"),
    ("D10", told(destinations=(DestinationStatus(address="", state="delayed", messages=2,
     status_key="no_route", broker="main", failures=3, next_attempt_at=NOW, service="other",
     dialog="h"),)), "no_route",
     "; tried 3 times, next at 1970-01-01T02:46", "route create NAME"),
    ("D10", replace(told(destinations=(DestinationStatus(address="", state="delayed", messages=1,
     status_key="no_route", broker="main"),)), brokers=[replace(MAIN, delayed=[
     {"status_key": "sender_disabled", "to_service_name": "else", "conversation_handle": "h1"},
     {"status_key": "no_route", "to_service_name": "wherehouse", "conversation_handle": "h2"}])]),
     "no_route", "for example of dialog h2 to wherehouse",
     "brokerd route explain wherehouse --broker main; "
     "brokerd dialog end h2 --cleanup --reason 'wrong service' --broker main"),
    ("D10", told(destinations=(DestinationStatus(address="", state="delayed", messages=2,
     status_key="sender_disabled", broker="main"),)), "sender_disabled) of broker main",
     "2 messages", "broker enable main"),
    ("D10", told(destinations=(DestinationStatus(address="", state="delayed", messages=2,
     status_key="held_after_error", broker="main"),)), "dialogs (held_after_error) of broker main",
     "2 messages wait: the dialog is in error", "transmission ls --broker main"),
    ("D10", told(destinations=(DestinationStatus(address="", state="delayed", messages=1,
     status_key="held_after_end", service="far", dialog="h2", broker="main"),)),
     "dialogs (held_after_end)", "the other side has ended the dialog, so nothing more is sent",
     "dialog end h2 --broker main"),
    ("D11", main(routes=[FAR | {"is_expired": True}]), "route far of broker main", "expired",
     "route alter far lifetime=7d --broker main"),
    ("D11", replace(HEALTHY, instance_routes=[route("on", is_expired=True)]),
     "instance-route on", "expired", "instance-route alter on"),
    ("D14", main(routes=[route("bcn", remote_service_name=CONFIGURATION_SERVICE)]),
     "broker main", "near",
     "route create near_here service=near address=LOCAL --broker main"),
    ("D28", main(default_encryption=True), "broker main", "-9727", "default_encryption=off"),
    ("D17", replace(HEALTHY, forwarder={"is_forwarding": True, "limit_bytes": 100,
     "used_bytes": 95}), "forwarder", "95 of 100", "forward_size_mb"),
    ("D19", main(routes=[FAR | {"mirror_state": "principal_only", "current_principal": "x"}]),
     "route far", "only x", "start the other"),
    ("D20", main(routes=[FAR | {"mirror_state": "not_operational"}]), "route far", "neither",
     "start one"),
    ("D21", replace(HEALTHY, endpoint=None), "endpoint of instance here", "none", "[endpoint]"),
    ("D22", replace(HEALTHY, endpoint=ENDPOINT | {"state": "STOPPED"}), "endpoint", "STOPPED",
     "endpoint start"),
    ("D23", replace(HEALTHY, endpoint=ENDPOINT | {"listen_error": "in use"}), "endpoint",
     "in use", "endpoint alter"),
    ("D39", main(stuck=[STUCK]), "dialog h to far", "1000 s: the peer is silent",
     "dialog status h --broker main; brokerd route explain --handle h --broker main"),
    ("D40", replace(HEALTHY, destinations=[TO | {"state": "suppressed", "suppressed_until": NOW,
     "consecutive_failures": 2, "last_error": "refused"}]), "destination tcp://far:1",
     "2 failed attempts: refused", "destination retry tcp://far:1"),
    ("D37", replace(HEALTHY, destinations=[TO | {"state": "idle", "consecutive_failures": 2,
     "last_error": "refused"}]), "destination tcp://far:1", "2 attempts failed: refused",
     "destination retry tcp://far:1"),
    ("D37", replace(HEALTHY, destinations=[TO | {"state": "idle", "consecutive_failures": 1,
     "last_error": "refused"}]), "destination tcp://far:1", "the last attempt failed: refused",
     "destination retry tcp://far:1"),
    ("D40", replace(HEALTHY, destinations=[TO | {"state": "suppressed", "suppressed_until": NOW,
     "consecutive_failures": 2, "last_error": "unknown", "status_key": "auth_failed"}]),
     "destination tcp://far:1", "2 failed attempts: unknown",
     "begins at the other side: brokerd peer pair --share far there, then brokerd peer pair CODE "
     "here; the peers so far:; brokerd peer ls"),
    ("D42", told(stores=(StoreStatus(broker="main", state="refused", reason="damaged",
     path=__file__),)),
     "store of broker main", "damaged", "store verify"),
    ("D42", told(stores=(StoreStatus(broker="it's", state="missing", reason="is not there"),)),
     "store of broker it's", "not there", "gone for good:; brokerd broker forget 'it'\"'\"'s'"),
    ("D43", told(stores=(StoreStatus(broker="main", state="full", path="/d/main.db"),)),
     "store of broker main", "full", "/d/main.db"),
    ("D51", told(stores=(StoreStatus(broker="main", state="slow", path="/d/main.db",
     reason="a commit has waited 8 s for the disk"),)),
     "store of broker main", "waited 8 s", "disk of /d/main.db"),
    ("D43", told(stores=(StoreStatus(broker="main", path="/d", free_bytes=500 * MIB),)),
     "store of broker main", "500 MiB", "make room"),
    ("D44", main(parked=[PARKED]), "queue q of broker main", "2 messages: poison, Boom",
     "group release g --broker main"),
    ("D44", told(queues=(QueueStatus(name="q", broker="main", retrying=2, last_error="Boom"),)),
     "queue q", "2 groups", "group ls --parked --broker main"),
    ("D44", told(queues=(QueueStatus(name="q", broker="main", retrying=2),)),
     "queue q", "no cause was given", "group ls --parked"),
    ("D45", told(queues=(QueueStatus(name="q", broker="main", reason="handler fails"),)),
     "queue q", "handler fails", "queue show q"),
    ("D74", told(queues=(QueueStatus(name="q", broker="main", full="9 messages, its limit is 9"),)),
     "queue q", "it is full: 9 messages", "monitor ls --queue q"),
    ("D74", told(queues=(QueueStatus(name="q", broker="main", full="9 messages; 2 were refused",
     max_messages=9, max_bytes=3 << 20, refused_at=Instant(NOW - 40 * SECOND)),)), "queue q",
     "2 were refused, the last 40 s ago", "or raise its limit:; brokerd monitor ls --queue q "
     "--broker main; brokerd queue alter q max_messages=18 max_bytes=6MiB --broker main"),
    ("D06", told(queues=(QueueStatus(name="q", broker="main", status="off", is_poisoned=True,
     off_because="5 rollbacks of conversation c"),)), "queue q", "off, with 0 messages in it: 5",
     "queue cure q --error 1 --description 'it cannot be processed' --broker main"),
    ("D45", told(queues=(QueueStatus(name="q", broker="main", unread="3 messages wait"),)),
     "queue q", "3 messages wait", "queue browse q --max 10 --broker main"),
    ("D45", told(queues=(QueueStatus(name="q", broker="main", unread="3 messages wait",
     is_activation_off=True, handler="m:f"),)), "queue q", "3 messages wait",
     "queue alter q activation.status=on --broker main"),
    ("D45", told(queues=(QueueStatus(name="q", broker="main", unread="3 messages wait",
     handler="m:f"),)), "queue q", "3 messages wait", "queue show q --broker main"),
    ("D47", told(clocks_apart=(ClockApart(peer="peer:west", ahead=-1200.4),)),
     "clock of peer:west", "20min behind that of this instance", "date -u"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", service="near", far_service="far",
     contract="talk", code=-8408, reason="no", count=2, last_at=NOW, example="c1"),)),
     "dialogs of broker main", "2 dialogs from near to far under contract talk failed: error -8408",
     "dialog ls --where conversation_id=c1 --broker main"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", reason="it is no JSON",
     service="near", count=1, last_at=NOW),)), "dialogs of broker main", "it is no JSON",
     "service show near --broker main"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", reason="peer:east may not send",
     service="near", far_service="shop", is_initiator=False, is_of_dialogs=False,
     principal="peer:east", count=3, last_at=Instant(NOW - 25 * SECOND)),)),
     "dialogs of broker main", "3 arriving messages from shop to near were refused: peer:east may "
     "not send; the last 25 s ago", "brokerd who-can; brokerd grant send on near to peer:east"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", reason="public may not send to near",
     service="near", principal="public", count=1, is_of_dialogs=False, is_initiator=False,
     last_at=NOW),)), "dialogs of broker main", "1 arriving message to near was refused: public",
     "has not proven who it is: pair with its instance"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", reason="peer:east may not send",
     principal="peer:east", count=1, is_of_dialogs=False, is_initiator=False, last_at=NOW),)),
     "dialogs of broker main", "1 arriving message was refused: peer:east",
     "no service of the name that it sends to; what it may do:; brokerd who-can --principal peer"),
    ("D77", told(failed_dialogs=(FailedDialogs(broker="main", service="shop", far_service="stock",
     code=-8494, reason="peer:east has no send permission on service 'stock'", count=4,
     is_initiator=True, last_at=Instant(NOW - 150 * SECOND)),)), "dialogs of broker main",
     "4 dialogs from shop to stock failed: error -8494: peer:east has no send permission on "
     "service 'stock'; the last 2min ago",
     "lacks a grant; there: brokerd grant send on stock to peer:east"),
    ("D78", told(destinations=(waiting(status_key="peer_queue_full", held_up=2, service="far",
     dialog="h", text="the target's queue is at its limit", broker="main"),)),
     "destination tcp://far:1", "2 messages wait for far at tcp://far:1: the target's queue is at",
     "brokerd doctor far; brokerd dialog status h --broker main"),
    ("D78", told(destinations=(waiting(oldest_at=Instant(NOW - 20 * SECOND),
     heard_at=Instant(NOW - 12 * SECOND)),)), "tcp://far:1", "silent for 12 s",
     "destination show tcp://far:1"),
    ("D78", told(destinations=(waiting(repeats=2),)), "tcp://far:1",
     "sent 3 times, and not acknowledged", "destination show tcp://far:1"),
    ("D78", told(destinations=(waiting(state="connecting", status_key="connection_lost", held_up=3,
     text="error while receiving or sending: reset"),)), "tcp://far:1", "3 messages wait",
     "destination retry tcp://far:1"),
    ("D78", told(destinations=(waiting(address="LOCAL", status_key="target_queue_busy", held_up=3,
     text="local delivery was put off", service="near", broker="main", dialog="h"),)),
     "messages of broker main", "3 messages wait for near of this instance: local delivery",
     "they wait for queue q of broker main, here:; brokerd queue show q --broker main"),
    ("D78", told(destinations=(waiting(status_key="auth_failed", held_up=3, text="not proved",
     service="far"),)), "destination tcp://far:1", "3 messages wait for far at tcp://far:1",
     "brokerd peer pair --share far there, then brokerd peer pair CODE here"),
    ("D46", told(warnings=("periodic work x fails: why",)), "periodic", "why", "periodic ls"),
    ("D47", told(clock="it has jumped 3d ahead"), "instance here", "jumped 3d", "clock confirm"),
    ("D47", replace(HEALTHY, now=Instant(NOW + SKEW + SECOND)), "instance here", "301 s", "clock"),
    ("D48", told(state="draining"), "instance here", "draining", "log"),
    ("D49", main(lingering={"ER": 7}), "broker main", "7 dialogs have been ER for more than 1h",
     "clean-up"),
    ("D49", main(lingering={"ER": MOST + 1}), "broker main", "more than 100 dialogs", "clean-up"),
    ("D75", told(dialog_limits=("user alice has 9 dialogs open",)), "instance here", "user alice",
     "max_dialogs_per_user"),
    ("D76", replace(main(), status=told(idle_dialogs={"main": "2 dialogs"}).status),
     "broker main", "2 dialogs", "brokerd dialog ls --broker main"),
    ("D50", replace(HEALTHY, dispatching={"dropped_by_reason": {"dispatcher_memory": 3},
     "memory_full_at": NOW - RECENT + 1}), "dispatcher", "3 fragments", "mem_hard"),
    ("D58", replace(HEALTHY, dispatching={"check_failure": "no memory"}), "checks of bodies",
     "no memory", "broker.checks"),
    ("D52", told(unknown_users=("no user nobody",)), "instance here", "no user nobody",
     "brokerd who-can"),
    ("D55", told(duplicates=(DuplicateStatus(broker_id="b1", earlier="here",
     later="instance w at tcp://w:4022"),)), "broker b1", "w at tcp://w:4022 both", "new-id"),
    ("D55", told(duplicates=(DuplicateStatus(broker_id="b1", broker="main"),)), "broker main",
     "deliver for b1", "new-id"),
    ("D60", told(open_listeners=beyond_this_machine(("TCP://0.0.0.0:1",), (), has_grants=False)),
     "instance here", "clients at TCP://0.0.0.0:1 (clients.trust_network)", "SECURITY.md"),
    ("D61", told(file_problems=(FileProblem(path="/d/main.db", problem="is a symbolic link",
     mend="put it there"),)), "file /d/main.db", "it is a symbolic link", "put it there"),
    ("D61", told(file_problems=(FileProblem(path="/d/x.db", problem="has mode 0644",
     mend="chmod go= /d/x.db", is_refused=False),)), "file /d/x.db", "mode 0644", "chmod"),
    ("D70", told(open_to_public=(PublicGrant(permission="control", securable="main",
     origin="online"),)), "instance here", "open to everybody: control on main",
     "brokerd revoke 'control on main to public'"),
    ("D70", told(open_to_public=(PublicGrant(permission="execute", securable="*"),)),
     "instance here", "execute on *", "remove it from clients.grants"),
    ("D04", told(no_master_key="/d/master.key is not there"), "instance here", "is not there",
     "put master.key back"),
    ("D04", told(no_master_key=foreign_key("main")), "instance here",
     "'main' are encrypted by another", "copy master.key"),
    ("D26", told(certificates=(CertificateStatus(owner="peer:west", purpose="transport",
     not_after=Instant(NOW), days_left=6),)), "certificate of peer:west",
     "the transport certificate of peer:west expires in 6 days", "brokerd peer add west"),
    ("D26", told(certificates=(CertificateStatus(purpose="dialog", not_after=Instant(NOW),
     days_left=-1),)), "certificate of instance here", "of this instance has expired",
     "brokerd certificate renew"),
    ("D62", told(doors=(DoorStatus(kind="peers", connections=8, most=9, strangers=7,
     refused={"connections": 5}, refused_at=Instant(NOW - RECENT + 1)),)), "connections of peers",
     "5 connections", "raise transport.max_peers"),
    ("D80", told(refused_logins=(RefusedLogins(who="TCP://10.0.0.7", reason="not installed here",
     count=3, first_at=Instant(0), last_at=Instant(NOW - 25 * SECOND)),)),
     "logins of TCP://10.0.0.7", "refused 3 times since 1970-01-01T00:00:00.000000Z, the last 25 s "
     "ago: not installed here",
     "brokerd audit --refused --event login --principal TCP://10.0.0.7"),
    ("D53", told(open_files=901), "instance here", "901 of at most 1000", "LimitNOFILE"),
]  # fmt: skip


@pytest.mark.rule("MON-22")
def test_nothing_is_wrong_with_one_that_is_well() -> None:
    assert list(examine(HEALTHY)) == []


@pytest.mark.rule("MON-22")
def test_rows_are_those_of_the_views() -> None:
    assert BROKER.keys() <= set(COLUMNS["brokers"])
    assert ENDPOINT.keys() <= set(COLUMNS["endpoint"])
    assert PARKED.keys() <= set(COLUMNS["parked_groups"])
    assert STUCK.keys() <= set(COLUMNS["transmission_queue"])
    assert HEALTHY.dispatching.keys() <= set(COLUMNS["broker_statistics"])


@pytest.mark.rule("SEC-88", "MON-22")
def test_what_else_is_open_is_information() -> None:
    (found,) = examine(told(openings=("dialogs of broker main leave in clear",)))
    assert (found.code, found.level) == ("D79", Level.INFO)
    assert found.text == "open: dialogs of broker main leave in clear"


@pytest.mark.rule("MON-22")
@pytest.mark.rule("SEC-50")
def test_what_everybody_may_send_or_receive_is_information() -> None:
    found = [*examine(told(open_to_public=(PublicGrant(permission="send", securable="urn:news"),)))]
    assert [(one.code, one.level, one.text) for one in found] == [
        ("D70", Level.INFO, "open to everybody: send on urn:news")
    ]


@pytest.mark.rule("REL-56", "MON-22")
@pytest.mark.parametrize(
    ("more", "level", "word"),
    [
        ({"redundancy": "one machine"}, Level.INFO, "PostgreSQL 15.1, schemas main: one machine"),
        ({"waits_for_standby": True, "standbys": ("db2",)}, Level.INFO, "PostgreSQL 15.1"),
        ({"waits_for_standby": True, "redundancy": "commits wait"}, Level.ERROR, "commits wait"),
    ],
)
def test_the_server_of_the_stores_is_told_and_that_commits_wait_is_an_error(
    more: dict[str, Any], level: Level, word: str
) -> None:
    server = ServerStatus(place="postgresql://db/x", version="15.1", **more)
    stores = (StoreStatus(broker="main", schema="main"),)
    (found,) = examine(told(server=server, stores=stores))
    assert (found.code, found.level, found.about) == ("D81", level, "stores in postgresql://db/x")
    assert word in found.text


@pytest.mark.rule("REL-87", "MON-22")
@pytest.mark.parametrize(
    ("kind", "level", "word"),
    [
        ("former", Level.WARNING, "takes changes: db2: was the primary"),
        ("newer", Level.ERROR, "db2: was the primary was promoted"),
    ],
)
def test_another_server_that_takes_changes_is_named(kind: str, level: Level, word: str) -> None:
    given: dict[str, Any] = {kind: ("db2: was the primary",)}
    status = told(server=ServerStatus(place="postgresql://db1,db2/x", **given))
    found = [one for one in examine(status) if one.code == "D82"]
    assert [(one.level, one.about) for one in found] == [
        (level, "stores in postgresql://db1,db2/x")
    ]
    assert word in found[0].text


@pytest.mark.rule("REL-56", "MON-22")
@pytest.mark.parametrize(
    ("state", "code"), [("full", "D43"), ("slow", "D51"), ("refused", "D42"), ("missing", "D42")]
)
def test_what_ails_a_store_on_a_server_names_no_file(state: str, code: str) -> None:
    server = ServerStatus(place="postgresql://db/x")
    stores = (StoreStatus(broker="main", schema="main", state=state, reason="why"),)
    _, found = examine(told(server=server, stores=stores))
    assert (found.code, found.about, found.commands) == (code, "store of broker main", ())


def test_connections_refused_long_ago_are_told_but_do_not_count() -> None:
    then = DoorStatus(kind="clients", refused={"descriptors": 2}, refused_at=Instant(NOW - RECENT))
    (found,) = examine(told(doors=(DoorStatus(kind="peers"), then)))
    assert (found.code, found.level) == ("D62", Level.INFO)
    assert "2 descriptors" in found.text


@pytest.mark.rule("END-18", "MON-22")
@pytest.mark.parametrize(
    ("kind", "section", "settings"),
    [
        ("peers", "transport", Transport),
        ("clients", "clients", Clients),
        ("http", "http", HttpSettings),
    ],
)
def test_connections_that_were_refused_name_each_setting_that_keeps_them_out(
    kind: str, section: str, settings: type[Clients | HttpSettings | Transport]
) -> None:
    names = {field.name for field in fields(settings)}
    for reason in TEXTS:
        door = DoorStatus(kind=kind, refused={reason: 1}, refused_at=NOW)
        (found,) = examine(told(doors=(door,)))
        _, _, raised = found.mend.partition(" raise ")
        if reason == DESCRIPTORS:
            assert "ulimit -n" in raised
        else:
            assert raised.startswith(f"{section}.")
            assert raised.removeprefix(f"{section}.") in names


@pytest.mark.rule("MON-22")
def test_what_was_dropped_long_ago_is_told_but_does_not_count() -> None:
    then = {"dropped_by_reason": {"dispatcher_memory": 1}, "memory_full_at": NOW - RECENT}
    (found,) = examine(replace(HEALTHY, dispatching=then))
    assert (found.code, found.level) == ("D50", Level.INFO)
    assert status_of([found]) == 0


@pytest.mark.rule("MON-22")
@pytest.mark.parametrize(
    ("field", "row", "every", "rest"),
    [
        ("parked", PARKED, 130, "30 more groups are parked"),
        ("stuck", STUCK, 101, "messages of more than these 100 dialogs may wait"),
    ],
)
def test_what_is_many_is_told_as_far_as_a_limit_and_that_there_is_more(
    field: str, row: Row, every: int, rest: str
) -> None:
    rows = [
        row | {"conversation_group_id": n, "conversation_handle": n, "last_error": f"Boom {n}"}
        for n in range(MOST + 1)
    ]
    seen = main(**{field: rows})
    status = replace(HEALTHY.status, queues=(QueueStatus(name="q", broker="main", parked=every),))
    *ones, more = examine(replace(seen, status=status))
    assert len(ones) == MOST
    assert more.text == rest
    assert more.level is Level.ERROR
    assert list(examine(main(**{field: rows[:MOST]})))[-1].text == ones[-1].text


@pytest.mark.rule("MON-22", "PBT-21")
@pytest.mark.parametrize(
    ("code", "seen", "about", "said", "mend"),
    [pytest.param(*fault, id=f"{n}-{fault[0]}") for n, fault in enumerate(FAULTS)],
)
def test_each_fault_is_found_alone_named_and_mended(
    code: str, seen: Seen, about: str, said: str, mend: str
) -> None:
    (found,) = examine(seen)
    assert found.code == code
    assert about in found.about
    assert said in found.text
    assert mend in cure(found)


@pytest.mark.rule("MON-88")
def test_a_mistyped_service_is_named_as_one_and_all_its_dialogs_can_be_given_up() -> None:
    key = {"status_key": "local_service_missing"}
    rows = [
        {"to_service_name": "nera", "conversation_handle": f"h{n}", **key} for n in range(11)
    ] + [{"to_service_name": "other", "conversation_handle": "x", **key}]
    to = DestinationStatus(address="", state="delayed", messages=12, broker="main", **key)
    status = told(destinations=(to,)).status
    (found,) = examine(replace(main(delayed=rows), status=status))
    assert "12 messages wait: no service of that name: a route leads to this" in found.text
    assert 'dialog h0 to nera; did you mean "near"?' in found.text
    assert found.mend.startswith("if the name is wrong, correct it in the program and give all")
    assert found.commands[-1] == (
        "brokerd broker clean-up main --far-service nera --reason 'wrong service'"
    )
    (found,) = examine(replace(main(delayed=rows[:2]), status=status))
    assert "give the 2 dialogs up, as the last command does; if" in found.mend
    assert "brokerd dialog end h0 h1 --cleanup" in found.commands[-1]


@pytest.mark.rule("MON-87")
def test_the_error_of_a_handler_is_told_once_and_with_what_it_holds_up() -> None:
    fails = QueueStatus(name="q", broker="main", reason="its readers fail: Boom", unread="3 wait")
    seen = replace(main(parked=[PARKED]), status=replace(HEALTHY.status, queues=(fails,)))
    (found,) = examine(seen)
    assert (found.code, found.level) == ("D44", Level.ERROR)
    held = replace(fails, retrying=2, last_error="Boom")
    (found,) = examine(told(queues=(held,)))
    assert (found.code, found.level) == ("D44", Level.ERROR)
    other = replace(held, last_error="Bang")
    assert [one.code for one in examine(told(queues=(other,)))] == ["D44", "D45"]
    elsewhere = replace(fails, name="other")
    seen = replace(main(parked=[PARKED]), status=replace(HEALTHY.status, queues=(elsewhere,)))
    assert [one.code for one in examine(seen)] == ["D44", "D45"]


@pytest.mark.rule("MON-87")
def test_groups_with_one_error_are_one_finding() -> None:
    rows = [PARKED | {"conversation_group_id": f"g{n}"} for n in range(12)]
    other = PARKED | {"conversation_group_id": "g12", "last_error": "Bang"}
    many, alone = examine(main(parked=[*rows, other]))
    assert many.text == "12 groups are parked, with 24 messages: poison, Boom"
    assert many.commands[-1] == (
        "brokerd group release g0 g1 g2 g3 g4 g5 g6 g7 g8 g9 --broker main"
    )
    assert "releases 10, and doctor then names the next" in many.mend
    assert alone.text == "group g12 is parked, with 2 messages: poison, Bang"


@pytest.mark.rule("MON-86")
@pytest.mark.parametrize(
    ("before", "level"), [(None, Level.WARNING), (299, Level.ERROR), (301, Level.WARNING)]
)
def test_a_full_queue_is_an_error_while_it_refuses(before: int | None, level: Level) -> None:
    at = None if before is None else Instant(NOW - before * SECOND)
    full = QueueStatus(name="q", broker="main", full="9", max_messages=9, refused_at=at)
    (found,) = examine(told(queues=(full,)))
    assert found.level is level


@pytest.mark.rule("MON-85")
@pytest.mark.parametrize(
    ("key", "state", "code"),
    [
        ("peer_queue_disabled", {"status": "off", "is_poisoned": True}, "D06"),
        ("peer_queue_full", {"full": "9 messages, its limit is 9"}, "D74"),
    ],
)
def test_messages_for_a_queue_here_are_told_of_once(
    key: str, state: dict[str, Any], code: str
) -> None:
    held = waiting(address="LOCAL", status_key=key, held_up=3, service="near", broker="main")
    queues = (QueueStatus(name="q", broker="main", **state),)
    (found,) = examine(told(queues=queues, destinations=(held,)))
    assert found.code == code
    other = replace(held, service="elsewhere")
    assert {one.code for one in examine(told(queues=queues, destinations=(other,)))} == {
        code,
        "D78",
    }
    for one in examine(told(queues=(QueueStatus(name="q", broker="main"),), destinations=(held,))):
        assert "other side" not in cure(one)


@pytest.mark.rule("MON-84")
def test_a_failed_dialog_that_is_gone_has_no_command_that_would_find_nothing() -> None:
    one = FailedDialogs(broker="main", service="a", far_service="b", code=-8494, last_at=NOW)
    for text in ("odd words", "two words has no send permission on service 'b'"):
        (found,) = examine(told(failed_dialogs=(replace(one, reason=text),)))
        assert found.commands == ()
        assert found.mend == FOUND_BY_BROKERS[-8494][1]


@pytest.mark.rule("MON-71")
def test_messages_on_their_way_are_no_fault() -> None:
    for one in (
        waiting(),
        waiting(messages=0, state="suppressed"),
        waiting(oldest_at=Instant(NOW - 20 * SECOND), heard_at=Instant(NOW - 9 * SECOND)),
        waiting(oldest_at=Instant(NOW - 9 * SECOND), heard_at=Instant(NOW - 20 * SECOND)),
        waiting(repeats=1, oldest_at=Instant(NOW - 200 * SECOND), heard_at=NOW),
    ):
        assert list(examine(told(destinations=(one,)))) == []


@pytest.mark.rule("MON-74")
def test_commands_can_be_pasted_as_they_are() -> None:
    seen = [found for _, seen, *_ in FAULTS for found in examine(seen)]
    seen += [found for _, pair, *_ in PAIR_FAULTS for found in examine_pair(pair)]
    seen += [found for _, one, *_ in SERVICE_FAULTS for found in examine_service(one)]
    commands = {command for found in seen for command in found.commands}
    assert len(commands) > len(CODES) // 2
    for command in commands:
        assert not re.search(r"\b[A-Z]{3,}\b(?!:)", re.sub("LOCAL|DEFAULT", "", command)), command
        assert "..." not in command
        program, *words = shlex.split(command)
        if program == "brokerd":
            names, target = [], cli
            while isinstance(target, click.Group):
                name, *words = words
                names.append(name)
                found = target.get_command(click.Context(target), name)
                assert found is not None, command
                target = found
            handles = {"g": "0123abcd-0000-0000-0000-000000000000"}
            handles |= {"h": handles["g"], "h2": handles["g"]}
            whole = [handles.get(word, word) for word in words]
            target.make_context(" ".join(names), whole)


@pytest.mark.rule("MON-22")
def test_every_code_of_a_finding_has_a_meaning() -> None:
    folder = Path(str(brokerd.__path__[0]))
    files = [*(folder / "admin" / "doctor").glob("*.py"), *(folder / "cli").glob("doctor*.py")]
    files.remove(folder / "admin" / "doctor" / "codes.py")
    used = {code for file in files for code in re.findall(r'"(D\d\d)"', file.read_text())}
    assert used == CODES.keys()


# Pairs.


def step(leg: str, outcome: str, **more: str) -> PingStep:
    usual = dict.fromkeys(("step", "route", "where", "reason", "detail"), "")
    given = {**usual, "instance": "here", "broker": "main", **more}
    return PingStep(leg=leg, outcome=outcome, **given)


OUT = step("out", "remote", where="tcp://far:1")
BACK = step("back", "remote", instance="there", where="tcp://here:1")
WELL = PingAnswer("far", "near", (OUT, BACK), True, 0.1)
OTHER = replace(
    MAIN,
    name="other",
    services=[service("far")],
    usages=[{"service_id": "far", "service_contract_id": "talk"}],
)
PAIR = PairSeen(
    from_service="near",
    to_service="far",
    contract="talk",
    source=MAIN,
    target=OTHER,
    ping=WELL,
    instance="here",
    endpoint=ENDPOINT,
    far=FarSeen(instance="there", endpoint=ENDPOINT),
    destinations=[TO | {"status_key": ""}],
)


def ended(*steps: PingStep, **more: Any) -> PairSeen:
    return replace(PAIR, ping=PingAnswer("far", "near", steps, False, 2.0), **more)


def source(**more: Any) -> PairSeen:
    return replace(PAIR, source=replace(MAIN, **more))


def target(**more: Any) -> PairSeen:
    return replace(PAIR, target=replace(OTHER, **more))


def failing(key: str) -> list[Row]:
    return [TO | {"status_key": key, "last_error": f"{key}: why"}]


NO_ROUTE = step("out", "delayed", reason="no_route")


def told_queue(broker: str = "main", **more: Any) -> QueueStatus:
    return QueueStatus(name="q", broker=broker, **more)


PAIR_FAULTS: list[tuple[str, PairSeen, str, str]] = [
    ("D02", ended(step("out", "delayed", reason="sender_disabled")), "main", "broker enable main"),
    ("D05", source(services=[]), "service near", "service ls --broker main"),
    ("D05", target(services=[service("Far")]), "service far", "service ls --broker other"),
    ("D05", ended(step("out", "refused", where="third", route="way",
     reason="service_not_in_broker")), "broker third",
     "brokerd service ls --broker third; brokerd route show way --broker main"),
    ("D06", source(queue_status=[told_queue(status="off")]), "queue q of broker main",
     "--broker main"),
    ("D45", target(queue_status=[told_queue("other", reason="handler fails")]),
     "queue q of broker other", "queue show q"),
    ("D06", target(queue_status=[told_queue("other", status="off")]), "queue q of broker other",
     "--broker other"),
    ("D74", target(queue_status=[told_queue("other", full="9 messages")]),
     "queue q of broker other", "monitor ls --queue q --broker other"),
    ("D07", source(contracts=[]), "contract talk", "contract ls --broker main"),
    ("D07", target(usages=[]), "service far of broker other", "contracts=talk"),
    ("D08", target(message_usages=[]), "contract talk", "contract show"),
    ("D09", target(message_types=[{"name": "Ask", "validation_desc": "empty"}]),
     "message type Ask", "message-type show Ask"),
    ("D28", source(default_encryption=True), "broker main", "alter main default_encryption=off"),
    ("D10", ended(NO_ROUTE), "the way to far", "route create NAME service=far"),
    ("D11", ended(NO_ROUTE, source=replace(MAIN, routes=[FAR | {"is_expired": True}])),
     "the way to far", "route alter far lifetime=7d --broker main"),
    ("D12", ended(NO_ROUTE, source=replace(MAIN, routes=[FAR | {"remote_service_name": "FAR "}])),
     "the way to far", "route create"),
    ("D13", ended(OUT, step("back", "delayed", instance="there", reason="no_route")),
     "the way back to near", "service=near"),
    ("D15", ended(OUT, step("out", "dropped", instance="mid", broker="", reason="no_route")),
     "at instance mid", "instance-route create"),
    ("D15", ended(OUT, *(step("out", "remote", instance=one, broker="") for one in ("a", "b", "a")),
     step("out", "dropped", instance="b", broker="", reason="hops_exhausted")),
     "the way to far, at instance b", "one of its routes"),
    ("D15", ended(OUT, step("out", "dropped", instance="mid", broker="", reason="hops_exhausted")),
     "the way to far, at instance mid", "instance-route create"),
    ("D16", ended(OUT, step("out", "dropped", instance="mid", broker="",
     reason="forwarding_disabled")), "at instance mid", "forwarding=true"),
    ("D17", ended(OUT, step("out", "dropped", instance="mid", broker="",
     reason="forward_store_full")), "at instance mid", "forward_size_mb"),
    ("D55", ended(step("out", "delayed", reason="duplicate_broker")), "the way to far", "brokerd"),
    ("D20", ended(step("out", "delayed", reason="mirror_error")), "the way to far", "start one"),
    ("D21", ended(OUT, endpoint=None), "endpoint of instance here", "[endpoint]"),
    ("D22", ended(OUT, endpoint=ENDPOINT | {"state": "STOPPED"}), "instance here",
     "endpoint start"),
    ("D21", ended(OUT, far=FarSeen(instance="there")), "endpoint of instance there", "[endpoint]"),
    ("D23", ended(OUT, far=FarSeen(instance="there", endpoint=ENDPOINT | {"listen_error": "x"})),
     "endpoint of instance there", "endpoint alter"),
    ("D24", ended(OUT, far=FarSeen(instance="there", endpoint=ENDPOINT | {"port": 2,
     "listener_address": ["tcp://0.0.0.0:2", "tcp://[::]:3"]})), "address tcp://far:1",
     "correct the address"),
    ("D36", ended(OUT, destinations=failing("dns_failed")), "tcp://far:1", "retry tcp://far:1"),
    ("D37", ended(OUT, destinations=failing("connect_failed")), "tcp://far:1", "retry"),
    ("D38", ended(OUT, destinations=failing("refused")), "tcp://far:1", "retry"),
    ("D38", ended(OUT, step("out", "remote", instance="mid", where="tcp://x:1")), "tcp://x:1",
     "ping far"),
    ("D38", replace(PAIR, ping=None, not_pinged="busy"), "the way to far", "ping"),
]  # fmt: skip


@pytest.mark.rule("PBT-21")
def test_nothing_is_wrong_between_two_that_converse() -> None:
    assert list(examine_pair(PAIR)) == []
    assert list(examine_pair(replace(PAIR, target=None))) == []
    assert list(examine_pair(replace(PAIR, endpoint=None, far=None))) == []  # not needed


@pytest.mark.rule("PBT-21", "MON-22")
@pytest.mark.parametrize(
    ("code", "seen", "about", "mend"),
    [pytest.param(*fault, id=f"{n}-{fault[0]}") for n, fault in enumerate(PAIR_FAULTS)],
)
def test_each_fault_of_a_pair_is_found_alone(
    code: str, seen: PairSeen, about: str, mend: str
) -> None:
    (found,) = examine_pair(seen)
    assert found.code == code
    assert about in found.about
    assert mend in cure(found)
    assert found.text


@pytest.mark.rule("MON-22")
def test_a_circle_of_routes_is_shown_as_one() -> None:
    around = [step("out", "remote", instance=one, broker="") for one in ("a", "b", "c", "a", "b")]
    last = step("out", "dropped", instance="c", broker="", reason="hops_exhausted")
    (found,) = examine_pair(ended(OUT, *around, last))
    assert found.text == "it goes in a circle: a -> b -> c -> a"


@pytest.mark.rule("MON-20", "MON-22")
def test_a_mirror_that_is_named_is_in_a_route() -> None:
    routes = [FAR | {"mirror_address": "tcp://twin:1"}]
    source = replace(MAIN, routes=routes)
    for mirror in ("tcp://twin:1", "tcp://far:1", None):
        assert list(examine_pair(replace(PAIR, source=source, mirror=mirror))) == []
    (found,) = examine_pair(replace(PAIR, source=source, mirror="tcp://other:1"))
    assert (found.code, found.about) == ("D18", "the routes of broker main")
    assert "route alter far mirror=tcp://other:1 --broker main" in cure(found)
    (found,) = examine_pair(replace(PAIR, mirror="tcp://far:1"))
    assert found.code == "D18"


# One service.

SERVICE = ServiceSeen(service="near", broker=MAIN, known=[BROKER], now=NOW)
SERVICE_FAULTS: list[tuple[str, ServiceSeen, str, str]] = [
    ("D02", replace(SERVICE, known=[BROKER | {"is_broker_enabled": False}]), "broker main",
     "broker enable main"),
    ("D05", replace(SERVICE, service="Near"), "service Near", "service ls --broker main"),
    ("D06", replace(SERVICE, broker=replace(MAIN, queue_status=[told_queue(status="off")])),
     "queue q", "status=on"),
    ("D07", replace(SERVICE, contract="none"), "contract none", "contract ls"),
    ("D07", replace(SERVICE, broker=replace(MAIN, usages=[]), contract="talk"), "service near",
     "contracts=talk"),
    ("D07", replace(SERVICE, broker=replace(MAIN, usages=[])), "service near",
     "contracts=DEFAULT"),
    ("D39", replace(SERVICE, broker=replace(MAIN, stuck=[STUCK])), "dialog h", "dialog status h"),
    ("D44", replace(SERVICE, broker=replace(MAIN, parked=[PARKED])), "queue q", "group release g"),
    ("D45", replace(SERVICE, broker=replace(MAIN, queue_status=[told_queue(reason="it fails")])),
     "queue q", "queue show q --broker main"),
]  # fmt: skip


@pytest.mark.rule("MON-20", "MON-22")
@pytest.mark.parametrize(
    ("code", "seen", "about", "mend"),
    [pytest.param(*fault, id=f"{n}-{fault[0]}") for n, fault in enumerate(SERVICE_FAULTS)],
)
def test_each_fault_of_one_service_is_found_alone(
    code: str, seen: ServiceSeen, about: str, mend: str
) -> None:
    assert list(examine_service(replace(SERVICE, contract="talk"))) == []
    (found,) = examine_service(seen)
    assert found.code == code
    assert about in found.about
    assert mend in cure(found)


# What counts.


@pytest.mark.rule("MON-21")
def test_levels_codes_and_classes_decide_what_is_shown_and_how_it_ends() -> None:
    (info, warning, error) = (Finding(f"D{n}", level, "x", "y") for n, level in enumerate(Level))
    unseen = problem("D9", "x", "y")
    every = [info, warning, error, error, unseen]
    assert chosen(every, least=Level.INFO, ignored=()) == [unseen, error, warning, info]
    assert chosen(every, least=Level.WARNING, ignored={"D2"}) == [unseen, warning]
    assert [status_of(one) for one in ([], [info], [warning], [warning, error], every)] == [
        0,
        0,
        1,
        2,
        3,
    ]


@pytest.mark.rule("MON-20", "SEC-18")
def test_a_binding_for_each_service_elsewhere_is_enough_for_dialogs_to_be_encrypted() -> None:
    bound = [{"remote_service_name": FAR["remote_service_name"]}]
    found = examine(main(default_encryption=True, bindings=bound))
    assert not [one for one in found if one.code == "D28"]
