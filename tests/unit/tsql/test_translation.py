"""What becomes of scripts: objects, verdicts, and nothing that a daemon would refuse."""

import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.objects.declarations import parse as declare
from brokerd.objects.declarations import read
from brokerd.tsql.assessment import Verdict, as_json, lines, markdown
from brokerd.tsql.translation import Translation
from tests.unit.tsql.scripts import calls, entries, shop, translated
from tests.unit.tsql.test_parser import OBJECTS, OTHERS, VERBS


def objects(*texts: str) -> dict[str, Any]:
    """The file of objects as tables, which a daemon accepts."""
    table = tomllib.loads(translated(*texts).objects)
    declare(table)
    return table


@pytest.mark.rule("IMP-5")
def test_each_statement_has_a_verdict_with_its_line() -> None:
    made = shop().assessment
    found = [(one.path, one.line, one.verdict.value) for one in made.entries]
    assert found == [
        ("shop.sql", 4, "moves"),
        ("shop.sql", 8, "moves"),
        ("shop.sql", 9, "moves"),
        ("shop.sql", 10, "moves"),
        ("shop.sql", 12, "moves"),
        ("shop.sql", 18, "moves"),
        ("shop.sql", 19, "moves"),
        ("shop.sql", 24, "moves"),
        ("shop.sql", 25, "moves"),
        ("procedures.sql", 11, "moves"),
        ("procedures.sql", 21, "hand"),
        ("procedures.sql", 24, "moves"),
        ("procedures.sql", 26, "moves"),
        ("procedures.sql", 28, "hand"),
        ("procedures.sql", 36, "hand"),
        ("procedures.sql", 41, "hand"),
        ("procedures.sql", 43, "hand"),
        ("procedures.sql", 44, "hand"),
    ]
    assert made.counts == {"moves": 12, "hand": 6, "none": 0, "unread": 0}


@pytest.mark.rule("IMP-10", "IMP-12", "IMP-13")
def test_the_objects_of_the_shop() -> None:
    table = tomllib.loads(shop().objects)
    assert table["broker"] == {"name": "main"}
    assert [(one["name"], one["validation"]) for one in table["message_type"]] == [
        ("//shop/Order", "well_formed_xml"),
        ("//shop/Packed", "well_formed_xml"),
        ("//shop/Tick", "empty"),
    ]
    assert table["contract"] == [
        {
            "name": "//shop/Orders",
            "types": {
                "//shop/Order": "initiator",
                "//shop/Packed": "target",
                "//shop/Tick": "any",
            },
        }
    ]
    assert table["queue"] == [
        {"name": "ShopQueue", "status": "on", "retention": "off"},
        {
            "name": "PackingQueue",
            "status": "on",
            "poison_handling": "off",
            "activation": {
                "handler": "packing_queue_handler:app",
                "max_readers": 4,
                "status": "on",
            },
        },
    ]
    assert table["service"] == [
        {"name": "//shop/Shop", "queue": "ShopQueue", "contracts": []},
        {"name": "//shop/Packing", "queue": "PackingQueue", "contracts": ["//shop/Orders"]},
    ]


@pytest.mark.rule("IMP-10")
def test_the_file_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "imported.objects.toml"
    path.write_text(shop().objects)
    _, declared = read(path)
    assert set(declared.queues) == {"ShopQueue", "PackingQueue"}


@pytest.mark.rule("IMP-13")
def test_objects_are_those_that_remain() -> None:
    table = objects(
        "CREATE QUEUE a CREATE QUEUE b CREATE QUEUE c DROP QUEUE A",
        "ALTER QUEUE b WITH STATUS = OFF",
        "ALTER QUEUE b WITH RETENTION = ON DROP QUEUE c CREATE QUEUE c",
    )
    assert table["queue"] == [
        {"name": "b", "status": "off", "retention": "on"},
        {"name": "c"},
    ]


@pytest.mark.rule("IMP-13")
@pytest.mark.parametrize(
    ("first", "then", "status"),
    [
        ("", "PROCEDURE_NAME = p", "off"),
        ("", "STATUS = ON, PROCEDURE_NAME = p", "on"),
        ("PROCEDURE_NAME = p", "MAX_QUEUE_READERS = 2", "on"),
        ("PROCEDURE_NAME = p", "STATUS = OFF", "off"),
        ("PROCEDURE_NAME = p", "DROP", None),
    ],
)
def test_activation_is_altered_as_the_server_does(
    first: str, then: str, status: str | None
) -> None:
    text = f"CREATE QUEUE q{f' WITH ACTIVATION ({first})' if first else ''}\n"
    (queue,) = objects(text + f"ALTER QUEUE q WITH ACTIVATION ({then})")["queue"]
    assert queue.get("activation", {}).get("status") == status


@pytest.mark.rule("IMP-13")
def test_databases_become_brokers() -> None:
    table = objects(
        "USE [Store A] CREATE QUEUE q\nGO\nUSE Other CREATE QUEUE q\nGO\nUSE msdb\n"
        "CREATE ROUTE r WITH SERVICE_NAME = 's', ADDRESS = 'TCP://h:4022'"
    )
    assert [(one["name"], one["queue"]) for one in table["broker"]] == [
        ("Store_A", [{"name": "q"}]),
        ("Other", [{"name": "q"}]),
    ]
    assert table["instance_route"] == [{"name": "r", "service": "s", "address": "TCP://h:4022"}]


@pytest.mark.rule("IMP-13")
def test_objects_of_msdb_are_no_objects_of_the_instance() -> None:
    table = objects("USE msdb CREATE QUEUE q CREATE ROUTE r WITH ADDRESS = 'TCP://h:4022'")
    assert table["broker"] == {"name": "main"}
    assert [one["name"] for one in table["queue"]] == ["q"]
    assert [one["name"] for one in table["instance_route"]] == ["r"]


@pytest.mark.rule("IMP-13")
def test_what_stands_before_any_use_belongs_to_the_only_database() -> None:
    table = objects("CREATE QUEUE a", "USE d CREATE QUEUE b")
    assert table["broker"] == {"name": "main"}
    assert [one["name"] for one in table["queue"]] == ["a", "b"]


@pytest.mark.rule("IMP-11")
def test_system_names_become_ours() -> None:
    text = (
        "CREATE QUEUE q CREATE SERVICE s ON QUEUE q "
        "([http://schemas.microsoft.com/SQL/Notifications/PostEventNotification])\n"
        "CREATE EVENT NOTIFICATION n ON QUEUE q FOR BROKER_QUEUE_DISABLED "
        "TO SERVICE 's', 'current database'"
    )
    table = objects(text)
    assert table["service"][0]["contracts"] == ["urn:brokerd:PostEventNotification"]
    assert table["event_notification"] == [
        {"name": "n", "scope": "queue", "queue": "q", "events": ["BROKER_QUEUE_DISABLED"],
         "service": "s"}
    ]  # fmt: skip


@pytest.mark.rule("IMP-11", "IMP-16")
@pytest.mark.parametrize(
    "name", ["\x7f", "\u2028", "\x85", "\U000e0001", 'a"b', "a\\", "\r\n", "é"]
)
def test_a_name_of_any_characters_stays_as_it_is(name: str) -> None:
    made = translated(f"CREATE QUEUE [{name}] WITH ACTIVATION (PROCEDURE_NAME = p)")
    assert tomllib.loads(made.objects)["queue"][0]["name"] == name
    found: dict[str, Any] = {}
    (text,) = made.handlers.values()
    exec(compile(text, "a.py", "exec"), found)
    assert found["app"].queues == (name,)


@pytest.mark.rule("IMP-12")
def test_a_near_miss_in_a_name_is_named() -> None:
    text = (
        "CREATE MESSAGE TYPE [//a/M] CREATE CONTRACT C ([//A/m] SENT BY ANY) CREATE QUEUE audit.q "
        "CREATE SERVICE s ON QUEUE Audit.Q (c)"
    )
    table = objects(text)
    assert table["service"] == [{"name": "s", "queue": "audit.q", "contracts": []}]
    notes = [one.note for one in entries(text) if one.verdict is Verdict.HAND]
    assert '"//a/M"' in notes[0]
    assert '"C"' in notes[1]


@pytest.mark.rule("IMP-14")
def test_what_is_taken_for_granted_is_declared_and_noted() -> None:
    text = "CREATE CONTRACT c (m SENT BY ANY) CREATE SERVICE s ON QUEUE q (c)"
    table = objects(text)
    assert [one["name"] for one in table["message_type"]] == ["m"]
    assert [one["name"] for one in table["queue"]] == ["q"]
    assert [one.verdict for one in entries(text)] == [Verdict.HAND, Verdict.HAND]


REFUSED = [
    "CREATE CONTRACT c (m SENT BY TARGET)",
    "CREATE QUEUE [#q]",
    f"CREATE QUEUE [{'q' * 129}]",
    "CREATE QUEUE q CREATE SERVICE [ANY] ON QUEUE q",
    "CREATE ROUTE r WITH ADDRESS = 'http://h'",
    "CREATE ROUTE r WITH SERVICE_NAME = 's', ADDRESS = 'TRANSPORT'",
    "CREATE ROUTE r WITH SERVICE_NAME = 's', ADDRESS = 'TCP://$(host):4022'",
    "CREATE ROUTE r WITH SERVICE_NAME = 's', BROKER_INSTANCE = 'x', ADDRESS = 'TCP://h:4022', "
    "MIRROR_ADDRESS = 'TCP://i:4022'",
    "CREATE ROUTE r WITH ADDRESS = 'LOCAL', LIFETIME = 0",
    "CREATE REMOTE SERVICE BINDING b TO SERVICE 's' WITH USER = u",
    "CREATE BROKER PRIORITY p FOR CONVERSATION SET (CONTRACT_NAME = c)",
    "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 11)",
    "CREATE BROKER PRIORITY o FOR CONVERSATION CREATE BROKER PRIORITY p FOR CONVERSATION",
    "CREATE QUEUE q CREATE EVENT NOTIFICATION n ON QUEUE q FOR QUEUE_ACTIVATION "
    "TO SERVICE 's', 'current database'",
    "CREATE EVENT NOTIFICATION n ON DATABASE FOR CREATE_TABLE TO SERVICE 's', 'x'",
    "CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = p, MAX_QUEUE_READERS = 99999)",
    "CREATE MESSAGE TYPE m VALIDATION = VALID_XML WITH SCHEMA COLLECTION x",
]


@pytest.mark.rule("IMP-10")
@pytest.mark.parametrize("text", REFUSED)
def test_what_a_daemon_would_refuse_is_a_comment(text: str) -> None:
    made = translated(text)
    declare(tomllib.loads(made.objects))
    assert made.assessment.remarks == []
    assert Verdict.HAND in {one.verdict for one in made.assessment.entries}


@pytest.mark.rule("IMP-21")
def test_a_schema_that_is_written_out_becomes_a_file() -> None:
    made = translated(
        'CREATE XML SCHEMA COLLECTION dbo.[Order Schema] AS N\'<?xml version="1.0" '
        'encoding="utf-16"?><xs:schema/>\'\n'
        "CREATE MESSAGE TYPE m VALIDATION = VALID_XML WITH SCHEMA COLLECTION dbo.[order schema]"
    )
    assert made.schemas == {"order_schema.xsd": "<xs:schema/>"}
    assert '# schema_file = "order_schema.xsd"\n' in made.objects
    assert tomllib.loads(made.objects)["message_type"] == [
        {"name": "m", "validation": "well_formed_xml"}
    ]


@pytest.mark.rule("IMP-5")
def test_trust_counts_where_there_is_a_broker() -> None:
    trust = "ALTER DATABASE d SET TRUSTWORTHY ON"
    assert entries(trust) == []
    assert len(entries(trust, "CREATE QUEUE q")) == 2


@pytest.mark.rule("IMP-18")
def test_a_trigger_cannot_send() -> None:
    text = "CREATE TRIGGER t ON x AFTER INSERT AS SEND ON CONVERSATION @h MESSAGE TYPE m (1)"
    assert [one.verdict for one in entries(text)] == [Verdict.NONE]


@pytest.mark.rule("IMP-5", "IMP-8")
@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("GRANT SEND ON SERVICE::[s] TO public", "brokerd grant 'send on s to public'"),
        ("GRANT RECEIVE ON q TO bob", "brokerd grant 'receive on main/q to client:bob'"),
        ("REVOKE CONNECT ON ENDPOINT::e FROM w", "brokerd revoke 'connect on endpoint to peer:w'"),
        ("GRANT SEND ON SERVICE::[a 'b] TO [demo\\web$]",
         "brokerd grant 'send on a?'\"'\"'b to client:NAME'"),
        ("CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022, LISTENER_IP = ALL) "
         "FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED, ENCRYPTION = DISABLED)",
         '[endpoint] in the settings: listen = ["all"], port = 4022, state = "started", '
         'encryption = "disabled", forwarding = true'),
        ("SELECT 1 FROM sys.transmission_queue", 'session.view("transmission_queue")'),
        ("WAITFOR (RECEIVE TOP (5) * FROM q), TIMEOUT 1500", 'tx.receive("q", 5, wait=1.5)'),
        ("SEND ON CONVERSATION @h MESSAGE TYPE m (1)", 'tx.send(handle, body, "m")'),
    ],
)  # fmt: skip
def test_the_counterpart_of_a_statement(text: str, ours: str) -> None:
    assert [one.ours for one in entries(text)] == [ours]


@pytest.mark.rule("IMP-8")
def test_a_user_counts_where_the_broker_needs_it() -> None:
    users = "CREATE USER a WITHOUT LOGIN; CREATE USER b FOR LOGIN b; CREATE CERTIFICATE c\n"
    assert entries(users) == []
    grant = "GRANT SEND ON SERVICE::s TO a"
    assert [one.line for one in entries(users + grant)] == [1, 2]
    binding = "CREATE REMOTE SERVICE BINDING r TO SERVICE 's' WITH USER = a"
    assert len(entries(users + binding)) == 3


@pytest.mark.rule("IMP-22")
@pytest.mark.parametrize(
    "text",
    [
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'secret'",
        "CREATE LOGIN a WITH PASSWORD = 'secret'",
        "CREATE CERTIFICATE c ENCRYPTION BY PASSWORD = 'secret' WITH SUBJECT = 's'",
        "BACKUP CERTIFICATE c TO FILE = 'f' WITH PRIVATE KEY (ENCRYPTION BY PASSWORD = 'secret')",
        "OPEN MASTER KEY DECRYPTION BY PASSWORD = 'secret'",
        "ALTER LOGIN a WITH PASSWORD = N'secret' OLD_PASSWORD = 'secret'",
    ],
)
def test_no_password_is_in_the_assessment(text: str) -> None:
    binding = "CREATE REMOTE SERVICE BINDING r TO SERVICE 's' WITH USER = a"
    made = translated(binding, text)
    assert len(made.assessment.entries) == 2
    assert "secret" not in "\n".join(lines(made.assessment)) + markdown(made.assessment)
    assert "secret" not in str(as_json(made.assessment))


@pytest.mark.rule("IMP-5")
def test_the_assessment_has_three_forms() -> None:
    made = translated("CREATE QUEUE [a|b]", "CREATE SERVICE s", "ALTER QUEUE q REBUILD").assessment
    text = "\n".join(lines(made))
    assert "2.sql:\n  1:17  unread  CREATE SERVICE S" in text
    assert "expected ON QUEUE, found the end of the batch" in text
    assert text.endswith(made.summary)
    page = markdown(made)
    assert page.index("## Could not be read (1)") < page.index("## Moves")
    assert "| 1.sql:1:1 | `CREATE QUEUE [a\\|b]` | [[queue]] a\\|b |" in page
    said = as_json(made)
    assert said["counts"] == {"moves": 2, "hand": 0, "none": 0, "unread": 1}
    assert said["files"] == 3


STATEMENTS = st.sampled_from([text for text, _ in [*OBJECTS, *VERBS, *OTHERS]] + REFUSED)
SCRIPTS = st.lists(
    st.one_of(
        STATEMENTS,
        st.sampled_from(["GO", "USE d", "USE msdb", "USE [a b]", "CREATE PROC d.s.P AS", "x"]),
        st.text(max_size=5),
        st.text(max_size=20).map(lambda name: f"CREATE QUEUE [{name.replace(']', ']]')}]"),
        st.text(max_size=20).map(
            lambda name: f'CREATE QUEUE q WITH ACTIVATION (PROCEDURE_NAME = "{name}")'
        ),
    ),
    max_size=12,
)


def check(made: Translation) -> None:
    """Every file can be used: the daemon accepts the objects, and Python the handlers."""
    if made.objects:
        declare(tomllib.loads(made.objects))
    assert not any("would refuse" in one for one in made.assessment.remarks)
    for name, text in made.handlers.items():
        assert name.isidentifier()
        compile(text, f"{name}.py", "exec")
    "\n".join(chain(lines(made.assessment), [markdown(made.assessment)])).encode()


@pytest.mark.rule("IMP-2", "IMP-10", "IMP-16")
@given(st.lists(SCRIPTS.map("\n".join), min_size=1, max_size=3))
def test_whatever_a_script_says_the_files_can_be_used(texts: list[str]) -> None:
    check(translated(*texts))


@pytest.mark.rule("IMP-2")
def test_twice_the_scripts_are_twice_the_work() -> None:
    def text(count: int) -> str:
        return "\n".join(
            f"CREATE QUEUE q{number} WITH ACTIVATION (PROCEDURE_NAME = p{number})\nCREATE SERVICE "
            f"s{number} ON QUEUE q{number} CREATE BROKER PRIORITY b{number} FOR CONVERSATION SET ("
            f"LOCAL_SERVICE_NAME = s{number})\nGO\nCREATE PROC p{number} AS RECEIVE * FROM "
            f"q{number}\nSEND ON CONVERSATION @h\nGO"
            for number in range(count)
        )

    once, twice = calls(lambda: translated(text(50))), calls(lambda: translated(text(100)))
    assert twice < 2.3 * once


_SETUP = """
CREATE QUEUE dbo.OrderQueue WITH ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.OnOrder,
    MAX_QUEUE_READERS = 1, EXECUTE AS OWNER);
GO
"""
_PROCEDURE = """
CREATE PROCEDURE dbo.OnOrder AS
BEGIN
    DECLARE @h uniqueidentifier, @b varbinary(max);
    RECEIVE TOP (1) @h = conversation_handle, @b = message_body FROM dbo.OrderQueue;
    SEND ON CONVERSATION @h (@b);
    END CONVERSATION @h;
END
GO
"""


@pytest.mark.rule("IMP-13")
@pytest.mark.parametrize(("first", "second"), [("USE Shop;\nGO\n", ""), ("", "USE Shop;\nGO\n")])
def test_a_script_without_use_belongs_to_the_only_database(first: str, second: str) -> None:
    mixed = [one.verdict for one in entries(first + _SETUP, second + _PROCEDURE)]
    alike = [one.verdict for one in entries(_SETUP, _PROCEDURE)]
    assert mixed == alike
    assert Verdict.UNREAD not in mixed


@pytest.mark.rule("IMP-5")
def test_an_import_without_a_statement_of_the_broker_says_so() -> None:
    assert "no statement of the broker" in translated("SELECT 1;").assessment.summary
