"""The commands about views and brokers: what they ask for, and what they print."""

import json
import re
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.errors import AccessDenied, Busy, DuplicateBroker
from tests.unit.cli.conftest import SmallDaemon

NOW = 1_700_000_000_000_000
SAID = "2023-11-14T22:13:20.000000Z"
HANDLE = "01020304-0506-0708-090a-0b0c0d0e0f10"
Capture = pytest.CaptureFixture[str]


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


def endpoint(**fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "conversation_handle": HANDLE,
        "state": "CO",
        "state_since": NOW,
        "is_initiator": True,
        "service_id": "urn:desk",
        "far_service": "urn:shop",
        "service_contract_id": "talk",
        "send_sequence": 3,
        "receive_sequence": 4,
        "unread_count": 5,
        "pending_send_count": 6,
        "error_code": None,
    }
    return row | fields


@pytest.mark.rule("VIEW-1", "CLP-90")
def test_ls_asks_for_what_was_chosen_and_prints_a_table(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["conversation_endpoints"] = [endpoint()]
    chosen = ["--state", "CO", "--state", "DI", "--service", "urn:desk", "--older-than", "2h"]
    assert run(daemon, "dialog", "ls", *chosen, "--limit", "7", "--where", "priority=5") == 0
    ((name, options),) = daemon.verbs("view")
    assert name == "conversation_endpoints"
    assert options == {
        "limit": 7,
        "bodies": False,
        "after": None,
        "older_than": 7200.0,
        "where": {
            "state": ["CO", "DI"],
            "service_id": "urn:desk",
            "priority": ["5", 5],
        },
    }
    title, header, row = capsys.readouterr().out.splitlines()
    assert title == "conversation_endpoints"
    assert header.split()[:3] == ["handle", "state", "since"]
    assert HANDLE in row
    assert row.split()[-5:] == ["3", "4", "5", "6", "-"]


@pytest.mark.rule("MON-89")
@pytest.mark.parametrize(
    ("said", "column"),
    [
        ("service", "service_id"),
        ("far service", "far_service"),
        ("far-service", "far_service"),
        ("contract", "service_contract_id"),
        ("service_id", "service_id"),
        ("is_initiator", "is_initiator"),
        ("colour", "colour"),
    ],
)
def test_where_takes_the_headers_of_the_table(
    said: str, column: str, daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["conversation_endpoints"] = [endpoint()]
    assert run(daemon, "dialog", "ls", "--where", f"{said}=shop") == 0
    assert daemon.verbs("view")[-1][1]["where"] == {column: ["shop"]}


@pytest.mark.rule("MON-89")
def test_no_header_hides_a_column(daemon: SmallDaemon, capsys: Capture) -> None:
    """The table of connections has the header of another column of the view."""
    daemon.views["connections"] = []
    assert run(daemon, "connection", "ls", "--where", "state=open") == 0
    assert daemon.verbs("view")[-1][1]["where"] == {"state": ["open"]}


@pytest.mark.rule("CLP-90")
def test_ls_as_json_has_every_column_and_where_to_go_on(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["conversation_endpoints"] = [endpoint(), endpoint(state="DI")]
    daemon.next["conversation_endpoints"] = "17"
    assert run(daemon, "dialog", "ls", "--json", "--limit", "2") == 0
    assert json.loads(capsys.readouterr().out) == {
        "rows": [endpoint(state_since=SAID), endpoint(state="DI", state_since=SAID)],
        "next": "17",
    }
    assert run(daemon, "dialog", "ls", "--limit", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "there may be more: --after 17"


@pytest.mark.rule("VIEW-1", "SX-14")
def test_show_prints_every_column_of_what_was_named(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["conversation_endpoints"] = [endpoint(far_service="urn:\x1b[2J")]
    assert run(daemon, "dialog", "show", HANDLE) == 0
    out = capsys.readouterr().out
    assert "2023-11-14T22:13:20.000000Z" in out
    assert "urn:\\x1b[2J" in out
    assert daemon.verbs("view")[0][1]["where"] == {"conversation_handle": HANDLE}
    daemon.views["conversation_endpoints"] = []
    assert run(daemon, "dialog", "show", HANDLE) == 67
    assert daemon.verbs("view")[-1][1]["where"] == {"conversation_id": HANDLE}
    assert capsys.readouterr().err.splitlines() == [
        f"brokerd: there is no dialog {HANDLE!r}",
        "  fix: brokerd dialog ls lists what there is",
    ]


@pytest.mark.parametrize(
    ("noun", "view"),
    [
        pytest.param("queue", "service_queues", marks=pytest.mark.rule("VIEW-4")),
        pytest.param("group", "conversation_groups", marks=pytest.mark.rule("VIEW-2")),
        pytest.param("transmission", "transmission_queue", marks=pytest.mark.rule("VIEW-3")),
        pytest.param("monitor", "queue_monitors", marks=pytest.mark.rule("VIEW-6")),
        pytest.param("task", "activated_tasks", marks=pytest.mark.rule("VIEW-7")),
        pytest.param("broker", "brokers", marks=pytest.mark.rule("VIEW-10")),
        pytest.param("forwarder", "forwarded_messages", marks=pytest.mark.rule("MON-2")),
        pytest.param("periodic", "periodic_tasks", marks=pytest.mark.rule("VIEW-13", "PBT-17")),
    ],
)
def test_every_noun_lists_its_view(
    noun: str, view: str, daemon: SmallDaemon, capsys: Capture
) -> None:
    from brokerd.admin.views.columns import COLUMNS  # noqa: PLC0415

    daemon.views[view] = [dict.fromkeys(COLUMNS[view])]
    assert run(daemon, noun, "ls") == 0
    assert capsys.readouterr().out.splitlines()[0] == view
    assert run(daemon, noun, "ls", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == daemon.views[view]


def test_the_forwarder_shows_what_has_passed(daemon: SmallDaemon, capsys: Capture) -> None:
    from brokerd.admin.views.columns import COLUMNS  # noqa: PLC0415

    row = dict.fromkeys(COLUMNS["forwarder_counters"], 0) | {"forwarded_messages_total": 17}
    daemon.views["forwarder_counters"] = [row]
    assert run(daemon, "forwarder", "show") == 0
    assert re.search(r"forwarded_messages_total +17", capsys.readouterr().out)
    assert run(daemon, "forwarder", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out) == row


def test_wrong_words_are_told(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "dialog", "ls", "--where", "state") == 64
    assert "COLUMN=VALUE is expected" in capsys.readouterr().err
    assert run(daemon, "dialog", "ls", "--older-than", "old") == 64
    assert "'old' is no duration" in capsys.readouterr().err


# Brokers.

STATE = {"name": "main", "broker_id": HANDLE, "is_broker_enabled": True, "disabled_reason": None}


@pytest.mark.rule("MAN-1", "MAN-2", "MAN-3", "MAN-5", "MAN-6")
@pytest.mark.parametrize(
    ("command", "verb"),
    [
        ("enable", "enable"),
        ("disable", "disable"),
        ("error-conversations", "error_conversations"),
        ("new-id", "new_broker"),
    ],
)
def test_operations_on_a_broker(
    command: str, verb: str, daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.answers[verb] = STATE | {"endpoints": {"CO": 2, "DI": 1}}
    assert run(daemon, "broker", command, "main", "--force", "--wait", "5s") == 0
    (args,) = daemon.verbs(verb)
    assert args[0] == "main"
    assert args[-1] == {"force": True, "wait": 5.0}
    if verb == "new_broker":
        assert len(args[1]) == 16
    assert daemon.broker == "msdb"
    assert capsys.readouterr().out.startswith(f"broker main {HANDLE}: ")
    assert run(daemon, "broker", command, "main", "--json") == 0
    assert json.loads(capsys.readouterr().out)["endpoints"] == {"CO": 2, "DI": 1}


@pytest.mark.rule("ERR-9772", "MAN-1")
def test_a_refused_operation_says_what_to_do(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = DuplicateBroker("broker 'east' delivers under that identifier")
    assert run(daemon, "broker", "enable", "main") == 65
    assert capsys.readouterr().err == (
        "brokerd: broker 'east' delivers under that identifier\n"
        "  fix: give one of the two an identifier of its own: brokerd broker new-id\n"
    )
    daemon.refuse = Busy("2 transactions are open", hint="use force")
    assert run(daemon, "broker", "disable", "main") == 75


@pytest.mark.rule("MAN-15")
def test_clean_up_counts_and_says_why(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["clean_up_endpoints"] = {
        "matched": {"DI": 3, "CO": 1},
        "removed": {"DI": 3},
        "locked": {"CO": 1},
        "next": None,
    }
    words = ["broker", "clean-up", "main", "--reason", "leak", "--state", "DI", "--state", "CO"]
    assert run(daemon, *words, "--older-than", "7d", "--far-service", "urn:shop") == 0
    ((broker, reason, wanted),) = daemon.verbs("clean_up_endpoints")
    assert (broker, reason) == ("main", "leak")
    assert wanted["states"] == ["DI", "CO"]
    assert wanted["older_than"] == 7 * 86_400
    assert (wanted["far_service"], wanted["service"], wanted["batch"]) == ("urn:shop", None, 1000)
    assert capsys.readouterr().out.splitlines() == [
        "4 endpoints fit (1 CO, 3 DI)",
        "3 removed (3 DI)",
        "1 left, because they are locked (1 CO)",
    ]
    assert run(daemon, *words, "--dry-run") == 0
    assert "removed" not in capsys.readouterr().out
    assert run(daemon, "broker", "clean-up", "main") == 64


@pytest.mark.rule("CLP-12")
@pytest.mark.parametrize(
    ("there", "said", "reached"),
    [
        (("msdb", "west"), (), "west"),
        (("main", "msdb", "west"), (), "main"),
        (("msdb", "west"), ("--broker", "main"), None),  # what is named is meant
        (("msdb", "west"), ("--broker", "wets"), None),
        (("east", "msdb", "west"), (), None),
        (("msdb",), (), None),
    ],
)
def test_the_only_broker_is_meant_where_none_is_named(
    daemon: SmallDaemon,
    capsys: Capture,
    there: tuple[str, ...],
    said: tuple[str, ...],
    reached: str | None,
) -> None:
    daemon.brokers = there
    daemon.views["brokers"] = [{"name": name} for name in there]
    assert run(daemon, "queue", "ls", *said) == (67 if reached is None else 0)
    if reached is not None:
        assert daemon.broker == reached
    else:
        assert f"this instance has: {', '.join(there)}" in capsys.readouterr().err


@pytest.mark.rule("CLP-12", "CLP-130")
def test_who_may_not_look_which_brokers_there_are_has_to_name_one(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.brokers, daemon.refuse = ("msdb", "west"), AccessDenied("not for you")
    assert run(daemon, "queue", "ls") == 67
    assert "there is no broker 'main'" in capsys.readouterr().err


@pytest.mark.rule("MAN-11")
def test_backup_gives_an_absolute_path(
    daemon: SmallDaemon, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["backup"] = {"path": "x", "bytes": 65_536}
    monkeypatch.chdir(tmp_path)
    assert run(daemon, "store", "backup", "copy.db", "--broker", "east") == 0
    assert daemon.verbs("backup") == [["east", str(tmp_path / "copy.db")]]
    assert capsys.readouterr().out == f"{tmp_path / 'copy.db'}: 64KiB, verified\n"


@pytest.mark.rule("MAN-18", "CLP-132")
def test_forget_says_whose_name_is_free(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["forget_broker"] = {"name": "east", "broker_id": HANDLE}
    assert run(daemon, "broker", "forget", "east") == 0
    assert capsys.readouterr().out == f"broker east {HANDLE}: forgotten; its name is free\n"
    assert run(daemon, "broker", "forget", "east", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "east", "broker_id": HANDLE}
    assert daemon.verbs("forget_broker") == [["east"], ["east"]]


@pytest.mark.rule("MAN-18")
@pytest.mark.parametrize("way", ["option", "environment"])
def test_where_a_daemon_is_named_its_files_are_not_touched(
    way: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = f"unix:{tmp_path}/nobody"
    words = ["broker", "forget", "east"]
    if way == "option":
        words += ["--address", address]
    else:
        monkeypatch.setenv("BROKERD_ADDRESS", address)
    assert main(words) == 69
    assert "brokerd serve" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("CLP-90", "CLP-91", "CLP-93", "CLP-94", "CLP-95", "CLP-132")
def test_the_same_is_there_without_await(daemon: SmallDaemon) -> None:
    for verb in ("enable", "disable", "error_conversations", "new_broker"):
        daemon.answers[verb] = STATE
    done = {"matched": {"DI": 1}, "removed": {}, "locked": {}, "next": None}
    daemon.answers["clean_up_endpoints"] = done
    daemon.answers["backup"] = {"path": "/copy.db", "bytes": 7}
    daemon.answers["forget_broker"] = {"name": "east", "broker_id": HANDLE}
    daemon.views["brokers"] = [{"name": "main"}]
    with brokerd.sync.connect(daemon.address, broker="main") as session:
        assert session.view("brokers", 5) == [{"name": "main"}]
        assert session.view_page("brokers", limit=5).next is None
        admin = session.admin
        for state in (
            admin.enable(),
            admin.disable(force=True),
            admin.error_conversations("east", wait=1),
            admin.new_broker(),
        ):
            assert (state.name, state.broker_id) == ("main", HANDLE)
        assert admin.clean_up_endpoints("why", dry_run=True).matched == {"DI": 1}
        assert admin.backup("/copy.db") == 7
        assert admin.forget_broker("east") == HANDLE
    assert daemon.verbs("error_conversations") == [["east", {"force": False, "wait": 1.0}]]
