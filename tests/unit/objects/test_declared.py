"""Declared objects: what a file may say, and what makes the present objects match it."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.clock import SECOND, Instant
from brokerd.errors import ConfigError, ObjectsRefused
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import (
    Activation,
    Contract,
    MessageType,
    Priority,
    Queue,
    Route,
    SentBy,
    Service,
    Validation,
)
from brokerd.objects.declarations import parse, parse_object, read
from brokerd.objects.declared import TABLES, Action, Change, Declared, Kind, diff
from brokerd.objects.forms import altered, describe
from brokerd.process.exit_statuses import exit_status
from brokerd.resources import config_dir
from brokerd.routing.table import problems

TYPES = [{"name": "Order"}, {"name": "Reply"}]
CONTRACT = {"name": "orders/v1", "types": {"Order": "initiator", "Reply": "target"}}
QUEUE = {"name": "shop_q"}
SERVICE = {"name": "shop", "queue": "shop_q", "contracts": ["orders/v1"]}
ROUTE = {"name": "r", "service": "far", "address": "TCP://Host:4022/"}
WHOLE: dict[str, object] = {
    "broker": {"name": "main", "default_encryption": "off"},
    "message_type": TYPES,
    "contract": [CONTRACT],
    "queue": [QUEUE],
    "service": [SERVICE],
    "route": [ROUTE],
}


def refused(**changed: object) -> list[str]:
    with pytest.raises(ObjectsRefused) as caught:
        parse(WHOLE | changed)
    return caught.value.message.splitlines()[1:]


def after(current: Declared, changes: list[Change], wanted: Declared) -> Declared:
    """What a catalog would hold after the changes, found by following them one by one."""
    tables: dict[Kind, dict[str, Any]] = {
        Kind.MESSAGE_TYPE: dict(current.message_types),
        Kind.CONTRACT: dict(current.contracts),
        Kind.QUEUE: dict(current.queues),
        Kind.SERVICE: dict(current.services),
        Kind.ROUTE: dict(current.routes),
    }
    encryption = current.default_encryption
    for change in changes:
        if change.kind is Kind.BROKER:
            assert change.option is not None
            assert change.option[0] == "default_encryption"
            encryption = change.option[1]
            continue
        table = tables[change.kind]
        if change.action is Action.DROP:
            del table[change.name]
            continue
        assert (change.name in table) == (change.action is not Action.CREATE)
        value = change.route_at(Instant(0)) if change.kind is Kind.ROUTE else change.value
        table[change.name] = value
    return msgspec.structs.replace(
        wanted,
        default_encryption=encryption,
        message_types=tables[Kind.MESSAGE_TYPE],
        contracts=tables[Kind.CONTRACT],
        queues=tables[Kind.QUEUE],
        services=tables[Kind.SERVICE],
        routes=tables[Kind.ROUTE],
    )


# Reading.


@pytest.mark.rule("OBJ-23", "OBJ-32", "OBJ-39", "END-14")
def test_a_declaration_becomes_values_of_the_model() -> None:
    activation = {"handler": "shop.app:orders", "max_readers": 3, "status": "off"}
    queue = {"name": "shop_q", "status": "off", "activation": activation}
    declared = parse(WHOLE | {"queue": [queue]})
    assert declared == Declared(
        broker="main",
        default_encryption=False,
        message_types={"Order": MessageType("Order"), "Reply": MessageType("Reply")},
        contracts={
            "orders/v1": Contract("orders/v1", {"Order": SentBy.INITIATOR, "Reply": SentBy.TARGET})
        },
        queues={
            "shop_q": Queue(
                key=QueueKey(0),
                name="shop_q",
                enqueue_enabled=False,
                receive_enabled=False,
                activation=Activation("shop.app:orders", max_readers=3, enabled=False),
            )
        },
        services={"shop": Service(ServiceKey(0), "shop", "shop_q", frozenset({"orders/v1"}))},
        routes={"r": Route("r", "tcp://host:4022", service_name="far")},
    )


@pytest.mark.rule("OBJ-13", "OBJ-33", "OBJ-39")
def test_what_is_left_out_has_the_defaults_of_service_broker() -> None:
    declared = parse(
        {
            "message_type": [{"name": "Order"}],
            "queue": [QUEUE, {"name": "read", "activation": {"handler": "a:b"}}],
            "service": [{"name": "shop", "queue": "shop_q"}],
        }
    )
    assert declared.message_types["Order"].validation is Validation.NONE
    assert declared.default_encryption
    assert not declared.honor_priority
    assert declared.broker == "main"
    queue = declared.queues["shop_q"]
    assert (queue.enqueue_enabled, queue.receive_enabled) == (True, True)
    assert (queue.retention, queue.poison_handling, queue.activation) == (False, True, None)
    activation = declared.queues["read"].activation
    assert activation is not None
    assert (activation.enabled, activation.max_readers) == (True, 1)
    assert activation.run_as == "owner"
    assert declared.services["shop"].contracts == frozenset()
    assert declared.instance_routes is None


@pytest.mark.rule("OBJ-30")
def test_the_default_type_and_contract_may_be_used_without_being_declared() -> None:
    contract = {"name": "c", "types": {"DEFAULT": "any"}}
    service = {"name": "shop", "queue": "shop_q", "contracts": ["DEFAULT", "c"]}
    declared = parse({"contract": [contract], "queue": [QUEUE], "service": [service]})
    assert declared.services["shop"].contracts == {"DEFAULT", "c"}
    assert "DEFAULT" not in declared.contracts


@pytest.mark.rule("OBJ-6")
def test_names_that_render_alike_are_different_names() -> None:
    names = ["Order", "order", "Orde\u0301r", "Ord\u00e9r"]
    types = [{"name": name} for name in names]
    contracts = [{"name": name, "types": {name: "any"}} for name in names]
    queues = [{"name": name} for name in names]
    services = [{"name": name, "queue": name, "contracts": [name]} for name in names]
    declared = parse(
        {"message_type": types, "contract": contracts, "queue": queues, "service": services}
    )
    for found in (declared.message_types, declared.contracts, declared.queues, declared.services):
        assert list(found) == names
    for left_out in names:
        kept = [one for one in queues if one["name"] != left_out]
        problems = refused(
            message_type=types, contract=contracts, queue=kept, service=services, route=[]
        )
        assert [line.partition(":")[0] for line in problems] == [
            f"service[{names.index(left_out) + 1}].queue"
        ]


@pytest.mark.rule("OBJ-10")
def test_a_number_sign_is_special_for_queues_only() -> None:
    declared = parse(
        {
            "message_type": [{"name": "#t"}],
            "contract": [{"name": "#c", "types": {"#t": "any"}}],
            "queue": [QUEUE, {"name": "q#"}],
            "service": [{"name": "#s", "queue": "shop_q", "contracts": ["#c"]}],
        }
    )
    assert (list(declared.message_types), list(declared.contracts)) == (["#t"], ["#c"])
    assert list(declared.services) == ["#s"]
    assert refused(queue=[QUEUE, {"name": "#q"}]) == [
        "queue[2].name: the name of a queue does not begin with # (OBJ-10)"
    ]


@pytest.mark.rule("OBJ-43")
def test_no_readers_with_activation_on_is_accepted_with_a_warning() -> None:
    activation = {"handler": "a:b", "max_readers": 0}
    declared = parse(WHOLE | {"queue": [QUEUE | {"activation": activation}]})
    assert declared.queues["shop_q"].activation == Activation("a:b", max_readers=0)
    assert "OBJ-43" in declared.warnings[0]
    quiet = parse(WHOLE | {"queue": [QUEUE | {"activation": activation | {"status": "off"}}]})
    assert quiet.warnings == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"contract": [{"name": "c"}]}, "who may send what"),
        ({"contract": [CONTRACT | {"types": {"Order": "me"}}]}, "'me' is none of initiator"),
        ({"contract": [CONTRACT | {"types": {"Odrer": "any"}}]}, 'did you mean "Order"?'),
        ({"contract": [CONTRACT, CONTRACT]}, '"orders/v1" is declared twice'),
        ({"message_type": [*TYPES, {"name": "x", "validation": "emptty"}]}, 'mean "empty"?'),
        ({"message_type": [*TYPES, {"names": "x"}]}, 'did you mean "name"?'),
        ({"message_type": TYPES[0]}, "write [[message_type]]"),
        ({"message_type": [*TYPES, 3]}, "is not a table"),
        ({"service": [SERVICE | {"queue": "shopq"}]}, 'did you mean "shop_q"?'),
        ({"service": [SERVICE | {"contracts": ["orders/v2"]}]}, 'did you mean "orders/v1"?'),
        ({"service": [SERVICE | {"contracts": "orders/v1"}]}, "a list of names"),
        ({"service": [{"name": "s"}]}, "name the queue"),
        ({"service": [SERVICE | {"queue": ["shop_q", "shop_q"]}]}, "name the queue"),
        ({"queue": [QUEUE | {"status": "maybe"}]}, "is none of on, off"),
        ({"queue": [QUEUE | {"activation": "a:b"}]}, "[queue.activation]"),
        ({"queue": [QUEUE | {"retain": "on"}]}, "unknown key"),
        ({"broker": {"name": "msdb"}}, "[[instance_route]]"),
        ({"broker": {"name": "../x"}}, "letters, digits"),
        ({"broker": "main"}, "is a section"),
        ({"rout": []}, 'did you mean "route"?'),
    ],
)
@pytest.mark.rule("BI-C3", "OBJ-12", "OBJ-32")
def test_what_cannot_be_declared(changed: dict[str, object], problem: str) -> None:
    assert any(problem in line for line in refused(**changed))


@pytest.mark.rule("OBJ-12")
@pytest.mark.parametrize("kind", [kind for kind in TABLES if kind is not Kind.BROKER])
def test_a_name_is_used_once_for_each_kind(kind: Kind) -> None:
    problems = refused(**{kind: [{"name": "same"}, {"name": "other"}, {"name": "same"}]})
    assert f'{kind}[3].name: "same" is declared twice (OBJ-12)' in problems
    assert not any(line.startswith(f"{kind}[2].name") for line in problems)


@pytest.mark.rule("OBJ-12", "OBJ-32")
def test_kinds_share_names_and_services_share_a_queue() -> None:
    service = {"queue": "same", "contracts": ["same"]}
    declared = parse(
        {
            "message_type": [{"name": "same"}],
            "contract": [{"name": "same", "types": {"same": "any"}}],
            "queue": [{"name": "same"}],
            "service": [{"name": "same", **service}, {"name": "second", **service}],
            "priority": [{"name": "same"}],
            "route": [{"name": "same", "service": "same", "address": "LOCAL"}],
        }
    )
    assert {one.queue for one in declared.services.values()} == {"same"}
    assert len(declared.services) == 2
    assert all(len(declared.objects(kind)) for kind in (Kind.QUEUE, Kind.PRIORITY, Kind.ROUTE))


@pytest.mark.rule("OBJ-23")
def test_a_type_listed_twice_in_a_contract_is_a_toml_error(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text('[[contract]]\nname = "c"\n[contract.types]\nA = "any"\nA = "target"\n')
    with pytest.raises(ConfigError, match=r":5:"):
        read(path)


@pytest.mark.rule("OBJ-24")
def test_a_contract_in_which_the_initiator_is_mute_is_unusable() -> None:
    problems = refused(contract=[CONTRACT | {"types": {"Order": "target", "Reply": "target"}}])
    assert problems == [
        "contract[1].types: the initiator could send nothing, so no dialog can begin (OBJ-24)"
    ]
    parse(WHOLE | {"contract": [CONTRACT | {"types": {"Order": "any", "Reply": "target"}}]})


@pytest.mark.rule("OBJ-27")
@pytest.mark.parametrize("name", ["EndDialog", "Error", "DialogTimer"])
def test_system_types_belong_to_no_contract_of_ours(name: str) -> None:
    types = {"Order": "any", f"urn:brokerd:{name}": "any"}
    assert "OBJ-27" in refused(contract=[CONTRACT | {"types": types}])[0]


@pytest.mark.rule("OBJ-8", "BI-R4")
@pytest.mark.parametrize("kind", ["message_type", "contract", "queue", "service", "route"])
@pytest.mark.parametrize("name", ["", None, 3, "x" * 129])
def test_names_have_1_to_128_characters(kind: str, name: object) -> None:
    problems = refused(**{kind: [{"name": name}]})
    assert any(line.startswith(f"{kind}[1].name: ") and "OBJ-8" in line for line in problems)


@pytest.mark.rule("OBJ-8")
@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
def test_a_name_of_128_characters_is_taken_whatever_they_are(letter: str) -> None:
    name = letter * 128
    declared = parse(
        {
            "message_type": [{"name": name}],
            "contract": [{"name": name, "types": {name: "any"}}],
            "queue": [{"name": name}],
            "service": [{"name": name, "queue": name}],
            "priority": [{"name": name}],
            "route": [{"name": name, "address": "LOCAL"}],
        }
    )
    for kind in ("message_types", "contracts", "queues", "services", "priorities", "routes"):
        assert list(getattr(declared, kind)) == [name]


@pytest.mark.rule("OBJ-8")
@pytest.mark.parametrize(
    ("kind", "key", "table"),
    [
        ("route", "service", {"name": "r", "address": "LOCAL"}),
        ("priority", "remote_service", {"name": "p"}),
    ],
)
def test_the_name_of_a_remote_service_has_up_to_256_characters(
    kind: str, key: str, table: dict[str, object]
) -> None:
    (made,) = parse(WHOLE | {kind: [table | {key: "\u00e9" * 256}]}).objects(Kind(kind)).values()
    assert describe(made)[key] == "\u00e9" * 256
    for name in ("x" * 257, ""):
        (problem,) = refused(**{kind: [table | {key: name}]})
        assert problem.startswith(f"{kind}[1].{key}: ")


@pytest.mark.rule("OBJ-11")
@pytest.mark.parametrize("kind", ["contract", "service"])
def test_nothing_is_called_any(kind: str) -> None:
    assert any("OBJ-11" in line for line in refused(**{kind: [{"name": "ANY"}]}))
    assert not any("OBJ-11" in line for line in refused(**{kind: [{"name": "Any"}]}))


@pytest.mark.rule("OBJ-30", "OBJ-31")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("message_type", "DEFAULT"),
        ("message_type", "urn:brokerd:EndDialog"),
        ("message_type", "urn:brokerd:Error"),
        ("message_type", "urn:brokerd:DialogTimer"),
        ("message_type", "urn:brokerd:EventNotification"),
        ("contract", "DEFAULT"),
        ("contract", "urn:brokerd:PostEventNotification"),
        ("service", "urn:brokerd:x"),
    ],
)
def test_what_is_built_in_is_not_declared(kind: str, name: str) -> None:
    assert any("is built in" in line for line in refused(**{kind: [{"name": name}]}))


@pytest.mark.rule("OBJ-39", "OBJ-60")
@pytest.mark.parametrize(
    ("activation", "problem"),
    [
        ({}, "OBJ-60"),
        ({"handler": "no colon"}, "OBJ-60"),
        ({"handler": "a:b", "max_readers": -1}, "OBJ-39"),
        ({"handler": "a:b", "max_readers": 32768}, "OBJ-39"),
        ({"handler": "a:b", "max_readers": True}, "OBJ-39"),
        ({"handler": "a:b", "run_as": ""}, "OBJ-60"),
        ({"handler": "a:b", "run_as": 7}, "OBJ-60"),
        ({"handler": 7}, "OBJ-60"),
        ({"status": "on"}, "OBJ-60"),
        ({"handler": "a:b", "colour": 3}, "unknown key"),
        ({"handler": "a:b", "deadline": "1ms"}, "off, or 1s to 1d"),
        ({"handler": "a:b", "memory": "1MiB"}, "at least 64MiB"),
        ({"handler": "a:b", "host": "moon"}, "daemon, process"),
        ({"command": []}, "a list of texts"),
        ({"command": ["a"], "handler": "a:b"}, "not both"),
        ({"command": ["a"], "host": "daemon"}, "a command is a process"),
    ],
)
def test_activation_that_cannot_work(activation: dict[str, object], problem: str) -> None:
    assert problem in refused(queue=[QUEUE | {"activation": activation}])[0]


@pytest.mark.rule("OBJ-39")
@pytest.mark.parametrize("max_readers", [0, 32767])
def test_the_edges_of_max_readers(max_readers: int) -> None:
    activation = {"handler": "a:b", "max_readers": max_readers, "run_as": "shop"}
    declared = parse(WHOLE | {"queue": [QUEUE | {"activation": activation}]})
    assert declared.queues["shop_q"].activation == Activation("a:b", max_readers, run_as="shop")


BOUND = {"service": "s", "broker": "01234567-89ab-cdef-0123-456789abcdef"}


@pytest.mark.parametrize(
    ("route", "rule"),
    [
        ({"address": "nowhere"}, "END-13"),
        ({"address": "TCP://h:99999"}, "END-13"),
        ({}, "END-13"),
        ({"address": "LOCAL", "broker": "0" * 32}, "RTE-61"),
        ({"address": "transport", "service": "s"}, "RTE-62"),
        ({"address": "transport", "service": "s", "broker": "0" * 32}, "RTE-62"),
        ({"address": "LOCAL", "service": "s", "lifetime": 0}, "RTE-64"),
        ({"address": "LOCAL", "service": "s", "lifetime": 2**31}, "beyond 2147483647 seconds"),
        (
            {
                "address": "LOCAL",
                "service": "SQL/ServiceBroker/BrokerConfiguration",
                "broker": "0" * 32,
            },
            "RTE-63",
        ),
        ({"address": "LOCAL", "service": "s", "broker": "x"}, "GUID"),
        ({"address": "TCP://p", "service": "s", "mirror": "TCP://m"}, "RTE-50, 9661"),
        ({"address": "TCP://p", "mirror": "TCP://m"}, "RTE-50, 9661"),
        ({**BOUND, "address": "TCP://p", "mirror": "tcp://P:4022/"}, "RTE-50, 9747"),
        ({**BOUND, "address": "TCP://p", "mirror": "nowhere"}, "END-13"),
        ({**BOUND, "address": "TCP://p", "mirror": 7}, "END-13"),
        ({**BOUND, "address": "TCP://p", "mirror": "LOCAL"}, "both addresses"),
        ({**BOUND, "address": "LOCAL", "mirror": "TCP://m"}, "both addresses"),
        ({**BOUND, "address": "TCP://p", "mirror": "local"}, "both addresses"),
        ({**BOUND, "address": "TCP://p", "mirror": "transport"}, "both addresses"),
    ],
)
@pytest.mark.rule("END-13", "RTE-50", "RTE-61", "RTE-62", "RTE-63", "RTE-64")
def test_routes_that_cannot_be(route: dict[str, object], rule: str) -> None:
    assert rule in refused(route=[{"name": "r", **route}])[0]


@pytest.mark.rule("RTE-50", "RTE-60")
def test_a_mirrored_route_has_a_second_address_and_shows_it() -> None:
    route = {
        "name": "r",
        "service": "far",
        "broker": "01234567-89ab-cdef-0123-456789abcdef",
        "address": "TCP://p:1",
        "mirror": "TCP://M",
    }
    (made,) = parse({"route": [route]}).routes.values()
    assert (made.address, made.mirror) == ("tcp://p:1", "tcp://m:4022")
    assert describe(made) == route | {"address": "tcp://p:1", "mirror": "tcp://m:4022"}
    assert problems(made) == []
    (change,) = diff(
        Declared(routes={"r": made}), parse({"route": [route | {"mirror": "TCP://n"}]})
    )
    assert change.sentence == "route r: mirror changes from tcp://m:4022 to tcp://n:4022"


@pytest.mark.rule("END-15", "RTE-60")
def test_the_forms_of_a_route() -> None:
    broker = "6a8f5a52-3f5c-4a4e-9d0e-0f0e0d0c0b0a"
    declared = parse(
        {
            "route": [
                {"name": "full", "service": "s", "broker": broker, "address": "tcp://[::1]"},
                {"name": "last", "address": "Transport"},
                {"name": "short", "service": "s", "address": "local", "lifetime": "1h"},
            ],
            "instance_route": [{"name": "short", "address": "LOCAL"}],
        }
    )
    assert [route.address for route in declared.routes.values()] == [
        "tcp://[::1]:4022",
        "TRANSPORT",
        "LOCAL",
    ]
    assert declared.routes["full"].broker_id == bytes.fromhex(broker.replace("-", ""))
    assert declared.lifetimes == {"route short": 3600}
    assert declared.instance_routes == {"short": Route("short", "LOCAL")}


@pytest.mark.rule("RTE-64")
@pytest.mark.parametrize("lifetime", [1, 2**31 - 1])
def test_a_lifetime_may_be_a_second_or_68_years(lifetime: int) -> None:
    declared = parse(WHOLE | {"route": [ROUTE | {"lifetime": lifetime}]})
    assert declared.lifetimes == {"route r": lifetime}


@pytest.mark.rule("RTE-60")
def test_routes_may_agree_in_all_but_the_name() -> None:
    """Two tables may have one name; one table may not."""
    twins = [ROUTE | {"name": name} for name in ("r", "R", "r2")]
    declared = parse(WHOLE | {"route": twins, "instance_route": [ROUTE]})
    assert [*declared.routes] == ["r", "R", "r2"]
    assert len({(one.service_name, one.address) for one in declared.routes.values()}) == 1
    assert any("twice" in line for line in refused(route=[ROUTE, ROUTE]))


@pytest.mark.rule("RTE-5")
def test_a_broker_id_is_a_guid_however_it_is_written() -> None:
    ways = ("01234567-89AB-CDEF-0123-456789ABCDEF", "0123456789abcdef0123456789abcdef")
    for written in (*ways, f"{{{ways[0]}}}"):
        declared = parse(WHOLE | {"route": [ROUTE | {"broker": written}]})
        assert declared.routes["r"].broker_id == bytes.fromhex(ways[1])


@pytest.mark.rule("BI-C3")
def test_problems_in_a_file_have_lines_and_exit_status_78(tmp_path: Path) -> None:
    path = tmp_path / "o.toml"
    path.write_text(
        '[[queue]]\nname = "q"\n[queue.activation]\nhandler = "x"\n'
        '[[service]]\nname = "s"\nqueue = "p"\n[[service]]\nname = "s"\nqueue = "q"\n'
    )
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert exit_status(caught.value) == 78
    what, *lines = caught.value.message.splitlines()
    assert str(path) in what
    assert [line.partition(": ")[0] for line in lines] == ["line 4", "line 7", "line 9"]


# Comparing.


def test_from_nothing_everything_is_created_in_the_order_of_reference() -> None:
    wanted = parse(WHOLE)
    changes = diff(Declared(default_encryption=False), wanted)
    assert [(change.action, change.kind) for change in changes] == [
        (Action.CREATE, Kind.MESSAGE_TYPE),
        (Action.CREATE, Kind.MESSAGE_TYPE),
        (Action.CREATE, Kind.CONTRACT),
        (Action.CREATE, Kind.QUEUE),
        (Action.CREATE, Kind.SERVICE),
        (Action.CREATE, Kind.ROUTE),
    ]
    assert all(change.sentence for change in changes)


def test_to_nothing_everything_is_dropped_in_the_opposite_order() -> None:
    changes = diff(parse(WHOLE), Declared(default_encryption=False))
    assert [(change.action, change.kind) for change in changes] == [
        (Action.DROP, Kind.ROUTE),
        (Action.DROP, Kind.SERVICE),
        (Action.DROP, Kind.QUEUE),
        (Action.DROP, Kind.CONTRACT),
        (Action.DROP, Kind.MESSAGE_TYPE),
        (Action.DROP, Kind.MESSAGE_TYPE),
    ]


@pytest.mark.rule("MAN-14")
@pytest.mark.parametrize(
    ("changed", "action", "sentence"),
    [
        ({}, None, ""),
        (
            {"broker": {"default_encryption": "on"}},
            Action.ALTER,
            "broker main: default_encryption changes from off to on",
        ),
        (
            {"message_type": [{"name": "Order", "validation": "empty"}, TYPES[1]]},
            Action.ALTER,
            "message type Order: validation changes from none to empty",
        ),
        (
            {"queue": [QUEUE | {"status": "off"}]},
            Action.ALTER,
            "queue shop_q: status changes from on to off",
        ),
        (
            {"queue": [QUEUE | {"activation": {"handler": "a:b", "max_readers": 2}}]},
            Action.ALTER,
            "queue shop_q: activation changes from none to a:b (max_readers 2)",
        ),
        (
            {"service": [SERVICE | {"contracts": ["DEFAULT"]}]},
            Action.ALTER,
            "service shop: it becomes a target for DEFAULT, it is no longer a target for orders/v1",
        ),
        (
            {"route": [ROUTE | {"address": "LOCAL"}]},
            Action.ALTER,
            "route r: address changes from tcp://host:4022 to LOCAL",
        ),
        ({"route": [ROUTE | {"lifetime": 60}]}, Action.ALTER, "route r: it expires in 60 s"),
    ],
)
def test_a_difference_is_told_and_made_once(
    changed: dict[str, object], action: Action | None, sentence: str
) -> None:
    current, wanted = parse(WHOLE), parse(WHOLE | changed)
    changes = diff(current, wanted)
    assert [(c.action, c.sentence) for c in changes] == ([(action, sentence)] if action else [])
    assert diff(after(current, changes, wanted), wanted) == []


@pytest.mark.rule("OBJ-25")
def test_the_pairs_of_a_contract_are_replaced_not_altered() -> None:
    wanted = parse(WHOLE | {"contract": [CONTRACT | {"types": {"Order": "any"}}]})
    (change,) = diff(parse(WHOLE), wanted)
    assert change.action is Action.REPLACE
    assert "from Order by initiator, Reply by target to Order by any" in change.sentence


@pytest.mark.rule("OBJ-23")
def test_the_order_of_pairs_and_the_keys_of_a_store_make_no_difference() -> None:
    wanted = parse(WHOLE)
    stored = msgspec.structs.replace(
        wanted,
        contracts={
            "orders/v1": Contract("orders/v1", {"Reply": SentBy.TARGET, "Order": SentBy.INITIATOR})
        },
        queues={"shop_q": Queue(key=QueueKey(7), name="shop_q")},
        services={"shop": Service(ServiceKey(9), "shop", "shop_q", frozenset({"orders/v1"}))},
    )
    assert diff(stored, wanted) == []


@pytest.mark.rule("RTE-68", "OBJ-30", "OBJ-31")
def test_what_is_built_in_is_never_dropped() -> None:
    born = Declared(
        message_types={name: MessageType(name) for name in ("DEFAULT", "urn:brokerd:Error")},
        contracts={"DEFAULT": Contract("DEFAULT", {"DEFAULT": SentBy.ANY})},
        routes={"AutoCreatedLocal": Route("AutoCreatedLocal", "LOCAL")},
        instance_routes={"AutoCreatedLocal": Route("AutoCreatedLocal", "LOCAL")},
    )
    assert diff(born, Declared(instance_routes={})) == []


@pytest.mark.rule("RTE-68")
def test_the_born_route_may_be_altered_by_declaring_it() -> None:
    born = Declared(routes={"AutoCreatedLocal": Route("AutoCreatedLocal", "LOCAL")})
    wanted = parse({"route": [{"name": "AutoCreatedLocal", "address": "TRANSPORT"}]})
    assert [change.action for change in diff(born, wanted)] == [Action.ALTER]


@pytest.mark.rule("RTE-68", "MAN-14")
@pytest.mark.parametrize("kind", [Kind.ROUTE, Kind.INSTANCE_ROUTE])
def test_the_born_route_goes_only_where_a_file_says_so(kind: Kind) -> None:
    routes = {"AutoCreatedLocal": Route("AutoCreatedLocal", "LOCAL")}
    born = Declared(routes=routes, instance_routes=routes)
    assert diff(born, parse({kind: []})) == []
    wanted = parse({kind: [{"name": "AutoCreatedLocal", "drop": True}]})
    (change,) = diff(born, wanted)
    assert (change.action, change.kind, change.name) == (Action.DROP, kind, "AutoCreatedLocal")
    gone = Declared(
        routes={} if kind is Kind.ROUTE else routes,
        instance_routes=routes if kind is Kind.ROUTE else {},
    )
    assert diff(gone, wanted) == []
    assert diff(gone, parse({kind: []})) == []  # and nobody makes it again unasked


@pytest.mark.rule("RTE-68")
def test_a_file_that_drops_the_born_route_says_nothing_else_of_it() -> None:
    drop = {"name": "AutoCreatedLocal", "drop": True}
    assert any("route[1].drop" in line for line in refused(route=[drop | {"address": "LOCAL"}]))
    assert any("route[1].drop" in line for line in refused(route=[drop | {"drop": False}]))
    assert any("twice" in line for line in refused(route=[drop, drop]))
    kept = {"name": "AutoCreatedLocal", "address": "LOCAL"}
    assert any("twice" in line for line in refused(route=[drop, kept]))
    assert any("twice" in line for line in refused(route=[kept, drop]))
    assert any("drop" in line for line in refused(route=[ROUTE | {"drop": True}]))


@pytest.mark.rule("RTE-69", "MAN-9")
def test_routes_of_the_instance_are_left_alone_unless_declared() -> None:
    current = Declared(instance_routes={"in": Route("in", "LOCAL")})
    assert diff(current, Declared()) == []
    (change,) = diff(current, Declared(instance_routes={}))
    assert (change.action, change.kind, change.name) == (Action.DROP, Kind.INSTANCE_ROUTE, "in")


@pytest.mark.rule("RTE-64", "RTE-65", "RTE-66")
def test_a_lifetime_counts_from_the_change_and_an_expired_route_is_revived() -> None:
    wanted = parse(WHOLE | {"route": [ROUTE | {"lifetime": "1min"}]})
    (created,) = [c for c in diff(Declared(), wanted) if c.kind is Kind.ROUTE]
    stored = created.route_at(Instant(5 * SECOND))
    assert stored.expires_at == 65 * SECOND
    current = msgspec.structs.replace(wanted, routes={"r": stored})
    assert diff(current, wanted, now=Instant(64 * SECOND)) == []
    (revived,) = diff(current, wanted, now=Instant(65 * SECOND))
    assert revived.route_at(Instant(100 * SECOND)).expires_at == 160 * SECOND
    (unbound,) = diff(current, parse(WHOLE), now=Instant(0))
    assert unbound.sentence == "route r: it no longer expires"
    assert unbound.route_at(Instant(0)).expires_at is None


@pytest.mark.rule("RTE-64", "RTE-65", "RTE-66")
@pytest.mark.parametrize(
    ("said", "sentence", "expires_at"),
    [
        ({"lifetime": "1min"}, "it expires in 60 s", 80),
        ({"lifetime": None}, "it no longer expires", None),
        ({"address": "TCP://other:1"}, "address changes from tcp://far:1 to tcp://other:1", 25),
    ],
)
@pytest.mark.parametrize("kind", [Kind.ROUTE, Kind.INSTANCE_ROUTE])
def test_an_altered_lifetime_begins_anew_or_is_taken_away(
    kind: Kind, said: dict[str, object], sentence: str, expires_at: int | None
) -> None:
    """Whether some of the old one is left or not; what is not said of it leaves it as it is."""
    route = Route("r", "tcp://far:1", service_name="far", expires_at=Instant(25 * SECOND))
    current = msgspec.structs.replace(Declared(), **{TABLES[kind]: {"r": route}})
    wanted = parse_object(kind, altered(route, {"name": "r", **said}), current)
    for now in (20, 30):
        (change,) = diff(current, wanted, now=Instant(now * SECOND))
        assert change.sentence.endswith(sentence)
        at = change.route_at(Instant(20 * SECOND)).expires_at
        assert at == (None if expires_at is None else expires_at * SECOND)


FULL = Route("r", "tcp://p:1", "s", BrokerId(b"f" * 16), mirror="tcp://m:1")


@pytest.mark.rule("RTE-66")
@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"broker": None, "mirror": None}, ("s", None, "tcp://p:1", "")),
        ({"mirror": None}, ("s", FULL.broker_id, "tcp://p:1", "")),
        ({"broker": None, "service": None, "mirror": None}, (None, None, "tcp://p:1", "")),
        ({"address": "TCP://q:1"}, ("s", FULL.broker_id, "tcp://q:1", "tcp://m:1")),
    ],
)
def test_an_altered_route_keeps_what_is_not_said_and_loses_what_is_null(
    said: dict[str, object], left: tuple[object, ...]
) -> None:
    current = Declared(routes={"r": FULL})
    wanted = parse_object(Kind.ROUTE, altered(FULL, {"name": "r", **said}), current)
    one = wanted.routes["r"]
    assert (one.service_name, one.broker_id, one.address, one.mirror) == left


# The shipped examples.


@pytest.mark.parametrize(
    ("name", "services"), [("east", {"shop": "shop_q"}), ("west", {"warehouse": "warehouse_q"})]
)
def test_the_examples_load(name: str, services: dict[str, str]) -> None:
    _, declared = read(config_dir() / f"{name}.objects.toml")
    assert {s.name: s.queue for s in declared.services.values()} == services
    assert set(declared.contracts) == {"orders/v1", "files/v1"}
    assert declared.default_encryption
    assert declared.warnings == ()


@pytest.mark.rule("SEC-81")
def test_the_examples_agree_on_contracts_and_leave_the_routes_to_pairing() -> None:
    east = read(config_dir() / "east.objects.toml")[1]
    west = read(config_dir() / "west.objects.toml")[1]
    assert east.contracts == west.contracts
    for one in (east, west):
        assert not {route.service_name for route in one.routes.values()} - {None}
        assert not one.remote_service_bindings


def test_the_examples_of_a_route_and_a_binding_are_usable() -> None:
    text = (config_dir() / "east.objects.toml").read_text()
    commented = text[text.index("# [[route]]") :].replace("# ", "").replace("#", "")
    declared = parse(tomllib.loads(text + "\n" + commented))
    assert declared.routes["to_warehouse"].address == "tcp://127.0.0.1:4023"
    assert declared.remote_service_bindings["to_warehouse"].principal == "peer:west"


# Schemas, options, priorities, several brokers.


@pytest.mark.rule("OBJ-15")
def test_a_schema_file_beside_the_declaration_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object"}')
    path = tmp_path / "objects.toml"
    path.write_text(
        '[broker]\nname = "main"\n[[message_type]]\nname = "Order"\n'
        'validation = "valid_json"\nschema_file = "order.json"\n'
    )
    source, declared = read(path)
    assert declared.message_types["Order"].schema == '{"type": "object"}'
    assert parse(source.data) == declared
    path.write_text(path.read_text().replace("order.json", "none.json"))
    with pytest.raises(ConfigError, match=r"line 6: .*schema_file: none.json: cannot be read"):
        read(path)


@pytest.mark.rule("OBJ-15", "OBJ-19")
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ({"validation": "valid_json"}, "needs the text of one"),
        ({"validation": "valid_xml", "schema": " "}, "needs the text of one"),
        ({"validation": "none", "schema": "{}"}, "needs no schema"),
        ({"validation": "valid_json", "schema": "{"}, "the schema is no JSON"),
        ({"validation": "empty", "require_body": "on"}, "means nothing for empty"),
        ({"validation": "wel_formed_json"}, "did you mean"),
        ({"validate_on_send": "maybe"}, "none of on, off"),
    ],
)
def test_what_a_message_type_cannot_say(kind: dict[str, object], problem: str) -> None:
    assert any(problem in line for line in refused(message_type=[*TYPES, {"name": "t"} | kind]))


@pytest.mark.rule("OBJ-15")
def test_a_file_with_a_schema_does_not_load_without_the_checker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    kind = {"name": "t", "validation": "valid_json", "schema": '{"title": "not tried before"}'}
    (problem,) = refused(message_type=[*TYPES, kind])
    assert "pip install brokerd[schemas]" in problem


@pytest.mark.rule("OBJ-48", "OBJ-49", "OBJ-51", "ERR-B1")
def test_priorities_are_declared_and_checked() -> None:
    given = [
        {"name": "a", "contract": "orders/v1", "local_service": "shop", "level": 10},
        {"name": "b", "remote_service": "anything at all"},
        {"name": "c", "contract": "DEFAULT", "remote_service": "ANY"},
    ]
    assert parse(WHOLE | {"priority": given}).priorities == {
        "a": Priority("a", "orders/v1", "shop", None, 10),
        "b": Priority("b", None, None, "anything at all", 5),
        "c": Priority("c", "DEFAULT", None, None, 5),
    }
    assert refused(
        priority=[
            {"name": "a", "level": 11},
            {"name": "b", "contract": "none"},
            {"name": "c", "local_service": "none"},
            {"name": "d", "remote_service": 7},
        ]
    ) == [
        "priority[1].level: a number from 1 to 10 (OBJ-48)",
        'priority[2].contract: no contract "none" is declared',
        'priority[3].local_service: no service "none" is declared',
        "priority[4].remote_service: a name, or ANY for every one (OBJ-48)",
        'priority[4]: "d" has the criteria of "a" (OBJ-51)',
    ]


@pytest.mark.rule("MAN-14")
def test_a_file_may_declare_several_brokers() -> None:
    one = {"name": "east", "queue": [{"name": "q"}], "honor_priority": "on"}
    two = {"name": "west", "default_encryption": "off"}
    declared = parse({"broker": [one, two], "instance_route": [{"name": "r", "address": "LOCAL"}]})
    east, west = declared.brokers
    assert (east.broker, west.broker) == ("east", "west")
    assert (east.honor_priority, west.honor_priority) == (True, False)
    assert (east.default_encryption, west.default_encryption) == (True, False)
    assert (list(east.queues), list(west.queues)) == (["q"], [])
    assert (list(east.instance_routes or {}), west.instance_routes) == (["r"], None)
    for data, problem in (
        ({"broker": [one, one]}, 'broker[2].name: broker "east" is declared twice'),
        ({"broker": [two], "queue": []}, "queue: unknown key"),
        ({"broker": [{"name": "msdb"}]}, "[[instance_route]]"),
        ({"broker": [{"queue": [{"name": "#"}]}]}, "broker[1].queue[1].name"),
        ({"broker": []}, "at least one"),
    ):
        with pytest.raises(ObjectsRefused) as caught:
            parse(data)
        assert problem in caught.value.message


@pytest.mark.rule("CLP-80", "CLP-81")
def test_what_is_described_declares_the_same() -> None:
    types = [
        *TYPES,
        {"name": "x", "validation": "well_formed_xml", "require_body": "on"},
        {"name": "j", "validation": "valid_json", "schema": "{}", "validate_on_send": "on"},
    ]
    queue = QUEUE | {"status": "off", "retention": "on", "activation": {"handler": "a:b"}}
    routes = [ROUTE, {"name": "b", "service": "s", "broker": "0" * 32, "address": "LOCAL"}]
    declared = parse(
        WHOLE
        | {"message_type": types, "queue": [queue], "route": routes}
        | {"priority": [{"name": "p", "contract": "orders/v1", "level": 7}]}
    )
    again = {
        str(kind): [describe(one) for one in declared.objects(kind).values()]
        for kind in TABLES
        if kind is not Kind.INSTANCE_ROUTE
    }
    assert parse({"broker": WHOLE["broker"], **again}) == declared


@pytest.mark.rule("BCN-12")
def test_a_route_to_the_dynamic_routing_service_says_which_services_it_hides() -> None:
    route = {"name": "bcn", "service": "SQL/ServiceBroker/BrokerConfiguration", "address": "LOCAL"}
    objects: dict[str, object] = {
        "broker": {"name": "main"},
        "queue": [{"name": "q"}],
        "service": [{"name": name, "queue": "q"} for name in ("b", "a", "own")],
        "route": [{"name": "own", "service": "own", "address": "LOCAL"}],
    }
    before = parse(objects).brokers[0]
    with_it = parse(objects | {"route": [*objects["route"], route]}).brokers[0]  # type: ignore[misc]
    (change,) = diff(before, with_it)
    assert change.sentence.endswith("unless bcn.exempt_local is set: a, b")
    (back,) = diff(with_it, before)
    assert "bcn.exempt_local" not in back.sentence
