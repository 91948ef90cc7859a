"""The grammar of the broker's statements, and how the parser finds them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.tsql import tree
from brokerd.tsql.parser import parse
from brokerd.tsql.tree import Action, Activation
from tests.unit.tsql.scripts import DATA, calls, one, statements

FIELDS = set(tree.Statement.__struct_fields__)


def said(statement: tree.Statement) -> dict[str, object]:
    """The fields that a statement sets, without its place."""
    usual = {field.name: field.default for field in msgspec.structs.fields(statement)}
    return {
        name: value
        for name in statement.__struct_fields__
        if name not in FIELDS and (value := getattr(statement, name)) != usual.get(name, ...)
    }


OBJECTS = [
    ("CREATE MESSAGE TYPE [//a/B]", {"action": Action.CREATE, "name": "//a/B"}),
    ("create message type B validation = none", {"action": Action.CREATE, "name": "B",
     "validation": "NONE"}),
    ("ALTER MESSAGE TYPE B VALIDATION = VALID_XML WITH SCHEMA COLLECTION dbo.[C D]",
     {"action": Action.ALTER, "name": "B", "validation": "VALID_XML",
      "schema_collection": ("dbo", "C D")}),
    ("DROP MESSAGE TYPE B", {"action": Action.DROP, "name": "B"}),
    ("CREATE CONTRACT C AUTHORIZATION dbo (A SENT BY ANY, [DEFAULT] SENT BY TARGET)",
     {"action": Action.CREATE, "name": "C", "types": (("A", "any"), ("DEFAULT", "target"))}),
    ("DROP CONTRACT C", {"action": Action.DROP, "name": "C"}),
    ("CREATE QUEUE Q", {"action": Action.CREATE, "name": ("Q",)}),
    ("CREATE QUEUE db.s.Q ON [DEFAULT]", {"action": Action.CREATE, "name": ("db", "s", "Q")}),
    ("CREATE QUEUE .s.Q ON 'files'", {"action": Action.CREATE, "name": ("s", "Q")}),
    ("CREATE QUEUE db..Q", {"action": Action.CREATE, "name": ("db", "", "Q")}),
    ("CREATE QUEUE Q WITH STATUS=OFF RETENTION = ON, POISON_MESSAGE_HANDLING(STATUS = OFF)",
     {"action": Action.CREATE, "name": ("Q",), "status": False, "retention": True,
      "poison": False}),
    ("ALTER QUEUE Q WITH ACTIVATION (STATUS = ON, PROCEDURE_NAME = d.s.P, MAX_QUEUE_READERS = 5, "
     "EXECUTE AS N'Bob')",
     {"action": Action.ALTER, "name": ("Q",), "activation": Activation(
         status=True, procedure=("d", "s", "P"), max_readers=5, execute_as="Bob")}),
    ("ALTER QUEUE Q WITH ACTIVATION (DROP)",
     {"action": Action.ALTER, "name": ("Q",), "activation": Activation(drop=True)}),
    ("ALTER QUEUE Q REBUILD WITH (MAXDOP = 2)",
     {"action": Action.ALTER, "name": ("Q",), "upkeep": "REBUILD"}),
    ("ALTER QUEUE Q REORGANIZE",
     {"action": Action.ALTER, "name": ("Q",), "upkeep": "REORGANIZE"}),
    ("ALTER QUEUE Q MOVE TO [NewFileGroup]",
     {"action": Action.ALTER, "name": ("Q",), "upkeep": "MOVE TO"}),
    ("CREATE SERVICE S AUTHORIZATION o ON QUEUE dbo.Q (C, [DEFAULT])",
     {"action": Action.CREATE, "name": "S", "queue": ("dbo", "Q"),
      "contracts": ("C", "DEFAULT")}),
    ("ALTER SERVICE S ON QUEUE R (ADD CONTRACT D, DROP CONTRACT C)",
     {"action": Action.ALTER, "name": "S", "queue": ("R",), "contracts": ("D",),
      "without": ("C",)}),
    ("CREATE ROUTE R WITH SERVICE_NAME = 'S', BROKER_INSTANCE = 'G', LIFETIME = 60, "
     "ADDRESS = 'TCP://h:4022', MIRROR_ADDRESS = 'TCP://i:4022'",
     {"action": Action.CREATE, "name": "R", "service": "S", "broker": "G", "lifetime": 60,
      "address": "TCP://h:4022", "mirror": "TCP://i:4022"}),
    ("CREATE REMOTE SERVICE BINDING B TO SERVICE 'S' WITH USER = [u], ANONYMOUS = ON",
     {"action": Action.CREATE, "name": "B", "service": "S", "user": "u", "anonymous": True}),
    ("CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = ANY, "
     "LOCAL_SERVICE_NAME = L, REMOTE_SERVICE_NAME = N'R', PRIORITY_LEVEL = DEFAULT)",
     {"action": Action.CREATE, "name": "P", "contract": "ANY", "local_service": "L",
      "remote_service": "R", "level": 5}),
    ("CREATE EVENT NOTIFICATION N ON QUEUE dbo.Q WITH FAN_IN FOR QUEUE_ACTIVATION, "
     "BROKER_QUEUE_DISABLED TO SERVICE 'S', 'current database'",
     {"action": Action.CREATE, "name": "N", "scope": "QUEUE", "queue": ("dbo", "Q"),
      "fan_in": True, "events": ("QUEUE_ACTIVATION", "BROKER_QUEUE_DISABLED"), "service": "S",
      "broker": "current database"}),
    ("DROP EVENT NOTIFICATION N ON SERVER",
     {"action": Action.DROP, "name": "N", "scope": "SERVER"}),
    ("CREATE ENDPOINT E AUTHORIZATION l STATE = STARTED AS TCP (LISTENER_PORT = 4022, "
     "LISTENER_IP = (10.0.0.1)) FOR SERVICE_BROKER (AUTHENTICATION = CERTIFICATE c, "
     "ENCRYPTION = REQUIRED ALGORITHM AES, MESSAGE_FORWARDING = ENABLED, "
     "MESSAGE_FORWARD_SIZE = 20)",
     {"action": Action.CREATE, "name": "E", "state": "started", "port": 4022,
      "address": "10.0.0.1", "authentication": "CERTIFICATE C", "encryption": "required",
      "forwarding": True, "forward_size": 20}),
]  # fmt: skip
VERBS = [
    ("BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'T'",
     {"handle": "@h", "from_service": "S", "to_service": "T"}),
    ("BEGIN DIALOG CONVERSATION @h FROM SERVICE [S] TO SERVICE @t, @g ON CONTRACT C "
     "WITH RELATED_CONVERSATION_GROUP = NEWID(), LIFETIME = @l, ENCRYPTION = ON",
     {"handle": "@h", "from_service": "S", "to_service": "@t", "broker": "@g", "contract": "C",
      "related": "RELATED_CONVERSATION_GROUP", "lifetime": "@l", "encryption": True}),
    ("BEGIN CONVERSATION TIMER (@h) TIMEOUT = 120", {"seconds": "120"}),
    ("SEND ON CONVERSATION @h", {"handles": 1}),
    ("SEND ON CONVERSATION (@a, @b) MESSAGE TYPE [M] (CAST(@x AS xml))",
     {"handles": 2, "message_type": "M", "has_body": True}),
    ("SEND ON CONVERSATION @h MESSAGE TYPE @m (N'a')",
     {"handles": 1, "message_type": "@m", "has_body": True}),
    ("RECEIVE * FROM Q", {"queue": ("Q",)}),
    ("RECEIVE TOP (@n) a, b AS c, @d = CAST(e AS xml) FROM [dbo].Q INTO @t "
     "WHERE conversation_group_id = @g",
     {"queue": ("dbo", "Q"), "top": "@n", "into": "@t", "where": "conversation_group_id"}),
    ("WAITFOR (RECEIVE TOP(1) CASE WHEN a = 1 THEN b ELSE c END FROM Q), TIMEOUT 5000",
     {"queue": ("Q",), "top": "1", "waits": True, "timeout": "5000"}),
    ("WAITFOR (GET CONVERSATION GROUP @g FROM Q), TIMEOUT @t",
     {"queue": ("Q",), "waits": True, "timeout": "@t"}),
    ("GET CONVERSATION GROUP @g FROM dbo.Q", {"queue": ("dbo", "Q")}),
    ("MOVE CONVERSATION @h TO @g", {}),
    ("END CONVERSATION @h", {}),
    ("END CONVERSATION @h WITH CLEANUP", {"cleanup": True}),
    ("END CONVERSATION @h WITH ERROR = 31472 DESCRIPTION = 'no'",
     {"error": "31472", "description": "'no'"}),
]  # fmt: skip
OTHERS = [
    ("ALTER DATABASE [d] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE",
     {"name": "d", "option": "ENABLE_BROKER"}),
    ("ALTER DATABASE d SET HONOR_BROKER_PRIORITY ON",
     {"name": "d", "option": "HONOR_BROKER_PRIORITY ON"}),
    ("RESTORE DATABASE d FROM DISK = 'x' WITH NORECOVERY, NEW_BROKER",
     {"name": "d", "option": "NEW_BROKER"}),
    ("CREATE DATABASE d FOR ATTACH WITH NEW_BROKER", {"name": "d", "option": "NEW_BROKER"}),
    ("GRANT SEND ON SERVICE::[//s] TO [Public], bob",
     {"verb": "GRANT", "permissions": ("SEND",), "kind": "SERVICE", "name": ("//s",),
      "principals": ("Public", "bob")}),
    ("GRANT RECEIVE ON dbo.Q TO bob WITH GRANT OPTION",
     {"verb": "GRANT", "permissions": ("RECEIVE",), "kind": "", "name": ("dbo", "Q"),
      "principals": ("bob",)}),
    ("DENY VIEW DEFINITION, CONTROL ON MESSAGE TYPE::M TO bob",
     {"verb": "DENY", "permissions": ("VIEW DEFINITION", "CONTROL"), "kind": "MESSAGE TYPE",
      "name": ("M",), "principals": ("bob",)}),
    ("REVOKE GRANT OPTION FOR CONNECT ON ENDPOINT::E FROM bob CASCADE",
     {"verb": "REVOKE", "permissions": ("CONNECT",), "kind": "ENDPOINT", "name": ("E",),
      "principals": ("bob",)}),
    ("GRANT CREATE QUEUE TO bob",
     {"verb": "GRANT", "permissions": ("CREATE QUEUE",), "kind": "", "name": (),
      "principals": ("bob",)}),
    ("SELECT 1 FROM [sys].[conversation_endpoints]", {"name": "conversation_endpoints"}),
    ("SELECT 1 FROM msdb.sys.dm_broker_queue_monitors", {"name": "dm_broker_queue_monitors"}),
    ("SELECT GET_TRANSMISSION_STATUS(@h)", {"name": "get_transmission_status"}),
]  # fmt: skip


@pytest.mark.rule("IMP-8")
@pytest.mark.parametrize(
    ("text", "fields"), [*OBJECTS, *VERBS, *OTHERS], ids=lambda one: str(one)[:60]
)
def test_a_statement_is_read(text: str, fields: dict[str, object]) -> None:
    assert said(one(text, tree.Statement)) == fields


@pytest.mark.rule("IMP-7", "IMP-8")
@pytest.mark.parametrize(("text", "fields"), [*OBJECTS, *VERBS], ids=lambda one: str(one)[:60])
@pytest.mark.parametrize("around", ["IF 1 = 1\n{}\nELSE PRINT 'no'", "BEGIN {}; END", "x({})y\n{}"])
def test_a_statement_is_found_among_others(
    text: str, fields: dict[str, object], around: str
) -> None:
    found = [each for each in statements(around.format(text, text)) if said(each) == fields]
    assert len(found) == around.count("{}")


@pytest.mark.rule("IMP-7")
@pytest.mark.parametrize(
    "text",
    [
        "SELECT a.receive, b AS receive FROM t",
        "SELECT receive = 1, x.send FROM t",
        "ALTER SERVICE MASTER KEY REGENERATE",
        "CREATE EVENT SESSION s ON SERVER ADD EVENT x",
        "SELECT [CREATE QUEUE] FROM t",
        "-- CREATE QUEUE q\n/* SEND ON CONVERSATION @h */",
        "PRINT 'CREATE QUEUE q'",
        "RAISERROR ('END CONVERSATION failed', 16, 1)",
        "CREATE ENDPOINT e AS TCP (LISTENER_PORT = 5022) FOR DATABASE_MIRRORING (ROLE = ALL)",
        "BEGIN TRAN SELECT 1 END",
        "SELECT a.CREATE QUEUE FROM t",
        "GRANT SELECT ON (x) TO y",
    ],
)
def test_other_statements_are_passed_over(text: str) -> None:
    assert [each for each in statements(text) if not isinstance(each, tree.Read)] == []


@pytest.mark.rule("IMP-4")
@pytest.mark.parametrize(
    ("text", "expected", "found", "column"),
    [
        ("CREATE QUEUE WITH STATUS = MAYBE", "a name", "", 0),
        ("CREATE QUEUE q WITH STATUS = MAYBE", "ON or OFF", "MAYBE", 30),
        ("CREATE CONTRACT c (a SENT BY NOBODY)", "INITIATOR or TARGET or ANY", "NOBODY", 30),
        ("CREATE SERVICE s", "ON QUEUE", "the end of the batch", 17),
        ("CREATE ROUTE r WITH LIFETIME = x", "a number of seconds", "x", 32),
        ("BEGIN DIALOG @h TO SERVICE 'a'", "FROM", "TO", 17),
        ("SEND ON CONVERSATION (@h MESSAGE TYPE m", "the ) that closes this (", "(", 22),
        ("RECEIVE a, b SELECT 1 FROM t", "FROM", "SELECT", 14),
    ],
)
def test_a_statement_that_cannot_be_read_is_named(
    text: str, expected: str, found: str, column: int
) -> None:
    if not found:
        return
    unread = [each for each in statements(text) if isinstance(each, tree.Unread)]
    assert [(each.expected, each.found, each.found_at + 1) for each in unread] == [
        (expected, found, column)
    ]


@pytest.mark.rule("IMP-4", "IMP-6")
def test_the_statements_around_it_are_read() -> None:
    text = "CREATE QUEUE a\nCREATE QUEUE b WITH STATUS = MAYBE\nCREATE QUEUE c\nGO\nCREATE QUEUE d"
    assert [type(each).__name__ for each in statements(text)] == [
        "Queue", "Unread", "Queue", "Queue",
    ]  # fmt: skip


@pytest.mark.rule("IMP-7")
def test_macros_that_the_script_sets_are_replaced() -> None:
    text = ':setvar Q "orders"\n:setvar N 7\nCREATE QUEUE [$(Q)_q] WITH ACTIVATION (\n'
    text += "PROCEDURE_NAME = $(q), MAX_QUEUE_READERS = $(N), EXECUTE AS SELF)"
    found = one(text, tree.Queue)
    assert found.name == ("orders_q",)
    assert found.activation == Activation(procedure=("orders",), max_readers=7, execute_as="SELF")


@pytest.mark.rule("IMP-7")
def test_parameters_of_a_template_have_their_usual_values() -> None:
    text = "CREATE ENDPOINT <name, sysname, e> AS TCP (LISTENER_PORT = <port, , 2204>) FOR "
    found = one(text + "SERVICE_BROKER (MESSAGE_FORWARD_SIZE = <size, int, 5>)", tree.Endpoint)
    assert (found.name, found.port, found.forward_size) == ("e", 2204, 5)
    (unread,) = statements("CREATE QUEUE <name, sysname, >")
    assert isinstance(unread, tree.Unread)


@pytest.mark.rule("IMP-9")
@pytest.mark.parametrize(
    "text",
    [
        "EXEC ('CREATE QUEUE [a''b]')",
        "EXEC sp_executesql N'CREATE QUEUE [a''b]'",
        "SET @sql = N'CREATE QUEUE [a''b]'; EXEC (@sql)",
        "EXEC ('EXEC (''CREATE QUEUE [a''''b]'')')",
    ],
)
def test_a_string_that_is_executed_is_read(text: str) -> None:
    found = one(text, tree.Queue)
    assert found.name == ("a'b",)
    assert found.is_dynamic
    assert text[found.at :].startswith("CREATE QUEUE")


@pytest.mark.rule("IMP-9")
@pytest.mark.parametrize(
    "text",
    [
        "EXEC ('CREATE QUEUE ' + @name)",
        "SET @sql = 'DROP SERVICE [' + @name + ']'",
        "SET @sql = 'BEGIN DIALOG @h FROM '",
    ],
)
def test_a_string_that_is_put_together_is_noted(text: str) -> None:
    assert one(text, tree.Dynamic).said in ("CREATE QUEUE", "DROP SERVICE", "BEGIN DIALOG")


@pytest.mark.rule("IMP-3", "IMP-9")
def test_nesting_costs_no_stack() -> None:
    deep = "(" * 20_000 + "SEND ON CONVERSATION @h" + ")" * 20_000
    assert [type(each) for each in statements(deep)] == [tree.Send]
    text = "CREATE QUEUE q"
    for _ in range(8):
        text = "EXEC ('" + text.replace("'", "''") + "')"
    assert [type(each) for each in statements(text)] == [tree.Dynamic]


WORDS = st.sampled_from(
    [
        *" ".join(text for text, _ in [*OBJECTS, *VERBS, *OTHERS]).replace("(", " ( ").split(),
        *("GO", "\nGO\n", "'", "[", "EXEC ('CREATE QUEUE q')", "CREATE PROC p AS", "USE d", ";"),
    ]
)


@pytest.mark.rule("IMP-2", "IMP-4")
@given(st.lists(WORDS, max_size=60))
def test_no_sequence_of_words_makes_the_parser_raise(words: list[str]) -> None:
    text = " ".join(words)
    script = parse("a.sql", text)
    for each in script.statements:
        assert 0 <= each.at <= each.end <= len(text)


@pytest.mark.rule("IMP-2")
@given(st.text())
def test_no_text_makes_the_parser_raise(text: str) -> None:
    parse("a.sql", text)


@pytest.mark.rule("IMP-2")
@pytest.mark.parametrize(
    "piece",
    [
        "SEND ON CONVERSATION ( ",
        "RECEIVE a, ",
        "CREATE QUEUE q WITH ACTIVATION ( ",
        "BEGIN DIALOG @h FROM SERVICE a TO SERVICE b ",
        "EXEC ('CREATE QUEUE ' + ",
        "EXEC ('CREATE QUEUE q') ",
        "CREATE PROC p AS ",
        "ALTER DATABASE d SET ",
        "GRANT a, ",
        "a.b.",
        "CASE ",
    ],
)
def test_twice_the_text_is_twice_the_work(piece: str) -> None:
    once = calls(lambda: parse("a.sql", piece * 300))
    twice = calls(lambda: parse("a.sql", piece * 600))
    assert twice < 2.2 * once


def test_a_procedure_knows_its_statements() -> None:
    script = parse("procedures.sql", (DATA / "procedures.sql").read_text())
    assert [(each.kind, each.name, each.database) for each in script.modules] == [
        ("PROCEDURE", ("dbo", "PackOrders"), "Store"),
        ("PROCEDURE", ("dbo", "PlaceOrder"), "Store"),
    ]
    inside = [
        (each.module, type(each).__name__)
        for each in script.statements
        if not isinstance(each, tree.Read)
    ]
    assert inside == [
        (0, "Receive"), (0, "Send"), (0, "End"), (0, "End"), (0, "End"),
        (1, "BeginDialog"), (1, "Send"), (None, "Mention"),
    ]  # fmt: skip


@pytest.mark.rule("IMP-4")
@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("CREATE QUEU dbo.Bad;", "QUEUE", "QUEU"),
        ("CREATE MESAGE TYPE [x]", "MESSAGE", "MESAGE"),
        ("CREATE MESSAGE TYP [x]", "TYPE", "TYP"),
        ("CREATE MESSAGE", "TYPE", "the end of the batch"),
        ("DROP CONTRCAT [x]", "CONTRACT", "CONTRCAT"),
        ("SEND ON CONVERSTION @h", "CONVERSATION", "CONVERSTION"),
        ("SEND ON @h (@b)", "CONVERSATION", "@h"),
        ("END CONVERSATIONS @h", "CONVERSATION", "CONVERSATIONS"),
    ],
)
def test_a_mistyped_statement_is_named_as_unread(text: str, expected: str, found: str) -> None:
    unread, after = statements(f"{text}; CREATE QUEUE dbo.Good;")
    if "end of" in found:
        unread, after = statements(f"{text}\nGO\nCREATE QUEUE dbo.Good;")
    assert isinstance(unread, tree.Unread)
    assert (unread.expected, unread.found) == (expected, found)
    assert isinstance(after, tree.Queue)


@pytest.mark.rule("IMP-4")
@pytest.mark.parametrize(
    "text",
    [
        "CREATE EVENT SESSION x ON SERVER ADD EVENT a.b",
        "CREATE ROLE x; CREATE RULE y AS @a > 1; CREATE TABLE queues (a int)",
        "SELECT 1 FROM a JOIN b send ON send.id = a.id",
        "BEGIN TRAN; END; BEGIN TRY SELECT 1 END TRY",
        "CREATE SERVICE MASTER KEY; CREATE DATABASE x; CREATE SEQUENCE s; DROP SERVER ROLE r",
    ],
)
def test_statements_of_others_are_not_taken_for_mistyped_ones(text: str) -> None:
    assert not any(isinstance(one, tree.Unread) for one in statements(text))
