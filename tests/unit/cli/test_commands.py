"""Commands that talk to a daemon: what they ask for, and what they print."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.cli.main import main
from brokerd.client.messages import Message
from brokerd.config.exposure import beyond_this_machine, describe
from brokerd.errors import ContractNotFound, ObjectsRefused
from brokerd.resources import config_dir
from tests.unit.cli.conftest import SmallDaemon, message

MINUTE = 60_000_000
NOW = 1_700_000_000_000_000

Capture = pytest.CaptureFixture[str]


def run(daemon: SmallDaemon, *words: str) -> int:
    return main([*words, "--address", daemon.address])


# status.


@pytest.mark.rule("XMT-19")
def test_status_gives_the_verdict_first_and_the_reasons(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.status = {
        "instance": "east",
        "now": NOW,
        "queues": [
            {"name": "shop_q", "ready": 3, "oldest_ready_at": NOW - 2 * MINUTE},
            {"name": "old_q", "status": "off", "ready": 7},
            {"name": "busy_q", "retrying": 2, "last_error": "ValueError: no stock"},
        ],
        "destinations": [
            {
                "address": "tcp://far:4022",
                "messages": 5,
                "state": "suppressed",
                "status_key": "connect_failed",
                "detail": "refused",
            }
        ],
        "dialogs": {"CO": 4},
        "stores": [{"broker": "main", "size_bytes": 70_000_000, "free_bytes": 1}],
        "something_new": 1,
    }
    assert run(daemon, "status") == 0
    assert run(daemon, "status", "--check") == 2
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "ATTENTION: 2 to look at",
        "  - queue old_q is off, 7 messages in it",
        "  - 5 messages wait for tcp://far:4022: connect_failed refused",
    ]
    text = "\n".join(out)
    assert "shop_q  on      3      -       2min" in text
    assert "tcp://far:4022  5         suppressed  -      connect_failed refused" in text
    assert "main    ok     67MiB" in text
    assert "CO     conversing  4" in text
    assert "2 groups wait for the next attempt: ValueError: no stock" in text


@pytest.mark.rule("MON-82")
@pytest.mark.parametrize(("state", "expected"), [("on", 0), ("off", 2)])
def test_status_and_top_exit_alike(daemon: SmallDaemon, state: str, expected: int) -> None:
    daemon.status = {"queues": [{"name": "shop_q", "broker": "main", "status": state}]}
    assert run(daemon, "status", "--check") == expected
    assert run(daemon, "top", "--once", "--every", "0.2") == expected


def test_status_says_ok_when_nothing_needs_a_look(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.status = {"instance": "east", "destinations": [{"address": "a", "messages": 9}]}
    assert run(daemon, "status", "--check") == 0
    assert capsys.readouterr().out.startswith("OK: all is well\n")


@pytest.mark.rule("SX-24")
def test_status_asks_for_a_look_at_files_that_are_not_safe(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    unsafe = {"path": "/d/main.db", "problem": "is a symbolic link", "mend": "mend it"}
    readable = {"path": "/d/x.db", "problem": "has mode 0644: others may read it", "mend": "m"}
    daemon.status = {"file_problems": [readable | {"is_refused": False}]}
    assert run(daemon, "status", "--check") == 0
    out = capsys.readouterr().out
    assert out.startswith("OK: all is well\n")
    assert "  /d/x.db has mode 0644: others may read it; m\n" in out
    daemon.status = {"file_problems": [unsafe]}
    assert run(daemon, "status", "--check") == 2
    assert "  - /d/main.db is a symbolic link\n" in capsys.readouterr().out


@pytest.mark.rule("SX-21")
def test_status_shows_what_is_open_to_other_machines_though_all_is_well(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    doors = beyond_this_machine(["TCP://0.0.0.0:1"], ["TCP://all:2"], has_grants=False)
    daemon.status = {"instance": "east", "open_listeners": msgspec.to_builtins(doors)}
    assert run(daemon, "status", "--check") == 0
    out = capsys.readouterr().out
    assert out.startswith("OK: all is well\n")
    for door in doors:
        assert f"  open to other machines: {describe(door)}\n" in out
    assert run(daemon, "status", "--json") == 0
    (clients, peers) = json.loads(capsys.readouterr().out)["open_listeners"]
    assert (clients["who"], clients["address"]) == ("clients", "TCP://0.0.0.0:1")
    assert (peers["who"], peers["permitted_by"]) == ("peers", "transport.allow_plaintext")


@pytest.mark.rule("SEC-50")
def test_status_shows_what_is_open_to_everybody_though_all_is_well(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.status = {"open_to_public": [{"permission": "send", "securable": "urn:news"}]}
    assert run(daemon, "status", "--check") == 0
    assert "  open to everybody: send on urn:news\n" in capsys.readouterr().out


@pytest.mark.rule("SEC-88")
def test_status_shows_what_else_is_open_though_all_is_well(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.status = {"openings": ["peers at TCP://127.0.0.1:1 prove nothing"]}
    assert run(daemon, "status", "--check") == 0
    assert "  open: peers at TCP://127.0.0.1:1 prove nothing\n" in capsys.readouterr().out


def test_status_as_json_has_the_verdict_and_all_the_daemon_said(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.status = {"instance": "east", "state": "draining", "queues": [{"name": "q"}]}
    assert run(daemon, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "verdict": ["the daemon is draining"],
        **daemon.status,
    }


@pytest.mark.rule("SX-14")
def test_no_name_from_elsewhere_moves_the_cursor(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.status = {"queues": [{"name": "q\x1b[2J", "reason": "a\nb"}]}
    run(daemon, "status")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "q\\x1b[2J" in out


# apply.


def test_apply_sends_the_file_to_its_broker_and_prints_the_changes(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    path = config_dir() / "east.objects.toml"
    daemon.changes = [{"action": "create", "sentence": "queue shop_q is created"}]
    assert run(daemon, "apply", str(path)) == 0
    ((objects, dry_run),) = daemon.verbs("apply")
    said = {"name": "shop_q", "status": "on", "receive_ageing": "off", "retention": "off"}
    assert objects["queue"][0].items() >= said.items()
    assert dry_run is False
    assert daemon.broker == "msdb"  # the broker of the file may not be there yet
    assert capsys.readouterr().out == "+ queue shop_q is created\n1 change made\n"


def test_apply_dry_run_says_so(daemon: SmallDaemon, capsys: Capture) -> None:
    path = str(config_dir() / "east.objects.toml")
    assert run(daemon, "apply", path, "--dry-run") == 0
    assert daemon.verbs("apply")[0][1] is True
    assert capsys.readouterr().out == "no changes needed\n"


def test_apply_says_that_a_broker_is_new(
    daemon: SmallDaemon, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "o.toml"
    path.write_text('[broker]\nname = "mian"\n')
    new = {"action": "create", "kind": "broker", "name": "mian", "sentence": "broker mian is new"}
    daemon.changes = [new, {**new, "kind": "queue", "name": "q"}]
    told = f"brokerd: {path}: there was no broker mian here: it "
    assert run(daemon, "apply", str(path), "--dry-run") == 0
    assert capsys.readouterr().err == f"{told}would be made\n"
    assert run(daemon, "apply", str(path)) == 0
    assert capsys.readouterr().err == f"{told}was made\n"


def test_apply_refused_by_the_daemon_is_told_with_its_status(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.refuse = ObjectsRefused("queue shop_q has open dialogs", hint="end them first")
    assert run(daemon, "apply", str(config_dir() / "east.objects.toml")) == 65
    assert capsys.readouterr().err == (
        "brokerd: queue shop_q has open dialogs\n  fix: end them first\n"
    )


@pytest.mark.rule("BI-C3")
def test_apply_does_not_send_a_file_that_is_wrong(
    daemon: SmallDaemon, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "o.toml"
    path.write_text('[[service]]\nname = "s"\nqueue = "none"\n')
    assert run(daemon, "apply", str(path)) == 78
    assert daemon.asked == []
    assert "line 3: service[1].queue: no queue" in capsys.readouterr().err


@pytest.mark.rule("OBJ-43")
@pytest.mark.parametrize("words", [["apply"], ["config", "check", "--objects"]])
def test_a_queue_whose_readers_never_start_is_warned_of(
    words: list[str], daemon: SmallDaemon, capsys: Capture, tmp_path: Path
) -> None:
    path = tmp_path / "o.toml"
    path.write_text(
        '[[queue]]\nname = "q"\n[queue.activation]\ncommand = ["/bin/true"]\nmax_readers = 0\n'
    )
    settings = tmp_path / "s.toml"
    settings.write_text(f'[instance]\nname = "x"\ndata_dir = "{tmp_path}"\n')
    if words == ["apply"]:
        assert run(daemon, *words, str(path)) == 0
    else:
        assert main([*words, str(path), str(settings)]) == 0
    said = capsys.readouterr()
    assert "queue q: max_readers is 0, so nothing starts" in said.out + said.err


# send.

LETTER = ["send", "--from", "shop", "--to", "warehouse", "--contract", "orders/v1"]


def test_send_begins_and_sends_in_one_transaction(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, *LETTER, "--type", "Order", "--body", "two", "--lifetime", "60") == 0
    begin, send = daemon.committed
    handle = begin[1][0]
    assert begin == [
        "begin_dialog",
        [handle, "shop", "warehouse", {"contract": "orders/v1", "lifetime": 60}],
    ]
    assert send == ["send", [handle, "Order", b"two"]]
    assert capsys.readouterr().out.startswith("sent; conversation handle ")


@pytest.mark.rule("SND-26", "CLP-167")
def test_send_gives_the_message_headers(daemon: SmallDaemon, capsys: Capture) -> None:
    given = ("--header", "content-type=text/plain", "--header", "note=a=b", "--header", "empty=")
    assert run(daemon, *LETTER, "--body", "two", *given) == 0
    headers = daemon.committed[1][1][3]
    assert headers == {"content-type": "text/plain", "note": "a=b", "empty": ""}
    for wrong in (("a",), ("a=1", "--header", "a=2"), ("a b=c",), ("brokerd-a=b",)):
        assert run(daemon, *LETTER, "--header", *wrong) != 0, wrong
    assert len(daemon.committed) == 2
    assert "--header 'a' has no =" in capsys.readouterr().err


@pytest.mark.rule("RCV-46")
def test_headers_of_messages_are_shown(daemon: SmallDaemon, capsys: Capture) -> None:
    headers: dict[str, str | bytes] = {"note": "\x1b[2Jx", "raw": b"\xff", "text": b"abc"}
    plain = {one: getattr(message(b"yes"), one) for one in message(b"yes").__struct_fields__}
    daemon.queue = [Message(**plain, headers=headers)] * 2
    assert run(daemon, "receive", "shop_q", "--ack", "--max", "1") == 0
    out = capsys.readouterr().out
    assert "raw: /w==" in out
    assert "text: abc" in out
    assert "\x1b" not in out
    assert run(daemon, "receive", "shop_q", "--ack", "--max", "1", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["headers"] == {"note": "\x1b[2Jx", "raw": "/w==", "text": "abc"}


def test_send_without_a_body_sends_none(daemon: SmallDaemon) -> None:
    assert run(daemon, *LETTER, "--end") == 0
    verbs = [verb for verb, _ in daemon.committed]
    assert verbs == ["begin_dialog", "send", "end"]
    assert daemon.committed[1][1][2] is None


def test_send_reads_the_body_from_standard_input(
    daemon: SmallDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00")))
    assert run(daemon, *LETTER, "--file", "-") == 0
    assert daemon.committed[1][1][2] == b"\xff\x00"


def test_send_waits_for_a_reply_on_the_queue_of_the_service(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [
        {"name": "other", "service_queue_id": "o"},
        {"name": "shop", "service_queue_id": "shop_q"},
    ]
    daemon.queue = [message(b"yes"), message(b"second")]
    assert run(daemon, *LETTER, "--wait", "2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [reply["body"] for reply in answer["replies"]] == ["yes"]
    ((queue, limit, conversation, _, wait_ms),) = daemon.verbs("receive")
    assert (queue, limit, wait_ms) == ("shop_q", 1, 2000)
    assert conversation.hex() == answer["conversation_handle"].replace("-", "")
    daemon.wait_until_left()
    assert [m.body for m in daemon.queue] == [b"second"]


def test_send_without_a_reply_in_time_fails_but_the_message_is_stored(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    assert run(daemon, *LETTER, "--wait", "0", "--queue", "shop_q") == 1
    err = capsys.readouterr().err
    assert "no reply within 0 s; the message is stored" in err
    assert err.endswith(f" --address {daemon.address}\n")
    assert daemon.committed


def test_send_to_wait_for_a_service_that_is_not_there(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.views["services"] = []
    assert run(daemon, *LETTER, "--wait", "1") == 67
    assert "service 'shop' is not in this broker" in capsys.readouterr().err
    assert daemon.committed == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--wait", "nan"), 64, "'nan' is no time that can be waited"),
        (("--wait", "-1"), 64, "'-1' is no time that can be waited"),
        (("--wait", "1e12"), 64, "give 0 to 2147484 seconds"),
        (("--wait", "soon"), 64, "'soon' is no time"),
        (("--wait", "1", "--queue", "shop_queue"), 67, "it comes to 'shop_q'"),
        (("--queue", "shop_q"), 64, "say --wait as well"),
        (("--broker-id", "east"), 64, "neither a GUID nor CURRENT_DATABASE"),
        (("--related", "123"), 64, "'123' is no handle of a dialog and no id"),
        (("--on", "00" * 16), 64, "leave out what begins one"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    words: tuple[str, ...], status: int, said: str, daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    assert run(daemon, *LETTER, *words) == status
    err = capsys.readouterr().err
    assert said in err
    assert "\n  fix: " in err
    assert daemon.committed == []


def test_send_on_dialogs_that_are_there(daemon: SmallDaemon, capsys: Capture) -> None:
    handles = ["00" * 16, "11" * 16]
    assert run(daemon, "send", "--on", handles[0], "--on", handles[1], "--body", "x", "--end") == 0
    ids = [bytes.fromhex(one) for one in handles]
    assert daemon.committed == [
        ["send", [ids, None, b"x"]],
        ["end", [ids[0], None, None]],
        ["end", [ids[1], None, None]],
    ]
    assert "11111111-1111" in capsys.readouterr().out
    assert run(daemon, "send", "--on", handles[0], "--on", handles[1], "--wait", "1") == 64
    assert run(daemon, "send", "--body", "x") == 64


def test_a_reply_that_is_an_error_is_told_with_what_to_do(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    body = b'{"code": -8408, "description": "no such contract there"}'
    daemon.queue = [message(body, message_type="urn:brokerd:Error", sequence=-1)]
    assert run(daemon, *LETTER, "--wait", "1") == 1
    err = capsys.readouterr().err
    assert "the dialog ended with error -8408: no such contract there" in err
    assert "\n  fix: let the service there accept the contract" in err


def test_an_error_of_a_verb_is_one_screen(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.refuse = ContractNotFound('there is no contract "orders/v1"')
    assert run(daemon, *LETTER) == 67
    err = capsys.readouterr().err
    assert err.startswith('brokerd: there is no contract "orders/v1"\n')
    assert "Traceback" not in err


def test_send_takes_one_body(daemon: SmallDaemon, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"x")
    assert run(daemon, *LETTER, "--body", "a", "--file", str(tmp_path / "b")) == 64


# group edit.


@pytest.mark.rule("CLP-117")
@pytest.mark.parametrize(("validation", "warns"), [("none", True), ("valid_json", False)])
def test_an_edit_warns_of_a_body_that_nothing_has_checked(
    daemon: SmallDaemon, capsys: Capture, validation: str, warns: bool
) -> None:
    group = "67676767-6767-6767-6767-676767676767"
    daemon.answers["edit_group"] = {
        "message_id": "1",
        "message_type": "Order",
        "validation": validation,
    }
    assert run(daemon, "group", "edit", group, "--body", "x", "--as-it-is") == 0
    assert daemon.verbs("edit_group") == [["main", b"g" * 16, b"x", "", True]]
    said = capsys.readouterr()
    assert said.out == f"message 1 of {group} has another body\n"
    assert ("message type Order has no schema (validation none)" in said.err) == warns


# Lists.


@pytest.mark.parametrize(
    "words",
    [
        ["apply", str(config_dir() / "east.objects.toml")],
        ["queue", "create", "q"],
        ["queue", "ls"],
        ["service", "ls"],
        ["event", "drop", "x"],
        ["dialog", "show", "shop"],
        ["receive", "shop_q", "--ack"],
        ["activator", "ls"],
        ["config", "show"],
    ],
    ids=" ".join,
)
def test_every_list_has_one_shape(
    daemon: SmallDaemon, tmp_path: Path, capsys: Capture, words: list[str]
) -> None:
    row: dict[str, Any] = {"kind": "queue", "name": "shop", "sentence": "s", "body": None}
    daemon.changes, daemon.objects = [row], [row]
    for view in ("service_queues", "conversation_endpoints"):
        daemon.views[view] = [row]
    daemon.queue = [message(b"one")]
    if words[0] == "activator":
        path = tmp_path / "a.toml"
        path.write_text(ACTIVATOR)
        assert main([*words, str(path), "--json"]) == 0
    else:
        where = [] if words[0] == "config" else ["--address", daemon.address]
        assert main([*words, "--json", *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {"rows", "next"}
    assert isinstance(shown["rows"], list)
    assert shown["next"] is None


ACTIVATOR = """
[[notification_service]]
name = "ops"
queue = "activations"
[[application]]
name = "packer"
trigger.queue = "q"
launch.command = ["packer"]
"""


# receive.


def test_receive_takes_only_when_told_so(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.queue = [message(b"one")]
    assert run(daemon, "receive", "shop_q") == 64
    assert "brokerd queue browse shop_q" in capsys.readouterr().err
    assert len(daemon.queue) == 1


@pytest.mark.rule("OBJ-47")
def test_browse_shows_messages_and_leaves_them(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.queue = [message(b"one\x1b[2J"), message(None, sequence=1), message(b"\xff", sequence=2)]
    assert run(daemon, "queue", "browse", "shop_q", "--max", "2") == 0
    daemon.wait_until_left()
    assert [m.sequence for m in daemon.queue] == [0, 1, 2]
    out = capsys.readouterr().out
    assert "OrderReply  sequence 0  to shop" in out
    assert "order 1  ready  level 5  group 67676767" in out
    assert "  one\\x1b[2J\n" in out
    assert "  (no body)\n" in out
    assert "and more in shop_q" in out
    assert run(daemon, "queue", "browse", "shop_q", "--all") == 0
    assert "3 messages in shop_q" in capsys.readouterr().out


COLUMNS = {
    "headers",
    "status",
    "priority",
    "queuing_order",
    "conversation_group_id",
    "conversation_handle",
    "conversation_id",
    "message_sequence_number",
    "service_name",
    "service_id",
    "service_contract_name",
    "service_contract_id",
    "message_type_name",
    "message_type_id",
    "validation",
    "message_body",
    "body_encoding",
    "message_id",
    "enqueued_at",
    "delivery_count",
    "timer_name",
}


@pytest.mark.rule("VIEW-5", "RCV-27", "RCV-36", "RCV-37", "RCV-38", "RCV-39", "RCV-43")
def test_browse_writes_every_column_as_json_one_message_a_line(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.queue = [message(b"one"), message(b"two", sequence=1)]
    assert run(daemon, "queue", "browse", "shop_q", "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first.keys() == COLUMNS
    assert (first["status"], first["message_body"]) == (1, "one")
    assert second["message_sequence_number"] == 1
    assert run(daemon, "queue", "browse", "shop_q", "--no-bodies") == 0
    assert daemon.verbs("browse")[-1][3] is False


def test_receive_ack_takes_them(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.queue = [message(b"one"), message(b"\xff", sequence=1)]
    assert run(daemon, "receive", "shop_q", "--ack", "--json") == 0
    assert daemon.queue == []
    shown = json.loads(capsys.readouterr().out)["rows"]
    assert [(m["body"], m["body_encoding"]) for m in shown] == [
        ("one", "utf-8"),
        ("/w==", "base64"),
    ]
    assert shown[0]["enqueued_at"] == "2023-11-14T22:13:20.000000Z"


def test_receive_from_an_empty_queue_says_so(daemon: SmallDaemon, capsys: Capture) -> None:
    assert run(daemon, "receive", "shop_q", "--ack") == 1
    assert capsys.readouterr() == ("no message is ready in shop_q\n", "")


SENT: dict[str, object] = {"is_end_of_dialog": False, "is_conversation_error": False}
"""What the transmission queue says of a message that a program sent."""
ENDED = {**SENT, "is_end_of_dialog": True}
FAILED = {**SENT, "is_conversation_error": True}


@pytest.mark.rule("PBT-2", "XMT-19", "VIEW-3")
@pytest.mark.parametrize(
    ("waiting", "told"),
    [
        ([SENT, ENDED], "1 message and 1 end of a dialog wait for"),
        ([SENT, SENT, ENDED, FAILED], "2 messages and 2 ends of dialogs wait for"),
        ([ENDED], "1 end of a dialog waits for"),
        ([SENT], "1 message waits for"),
    ],
)
def test_the_end_of_a_dialog_is_not_counted_as_a_message_that_waits(
    daemon: SmallDaemon, capsys: Capture, waiting: list[dict[str, object]], told: str
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    where = {
        "conversation_handle": "11",
        "to_service_name": "warehouse",
        "status_key": "connect_failed",
        "transmission_status": "refused",
    }
    daemon.views["transmission_queue"] = [{**where, **one} for one in waiting]
    assert run(daemon, *LETTER, "--wait", "0", "--end") == 1
    assert capsys.readouterr().err.startswith(f"brokerd: no reply within 0 s; {told} warehouse: ")


@pytest.mark.rule("PBT-2", "XMT-19")
def test_nothing_came_because_what_was_sent_waits_and_that_is_said(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    daemon.objects = [{"name": "shop", "kind": "service"}, {"name": "warehouse", "kind": "service"}]
    row = {
        "conversation_handle": "11",
        "to_service_name": "warehuose",
        "status_key": "local_service_missing",
        "transmission_status": "nothing matches the service name and broker",
        **SENT,
    }
    daemon.views["transmission_queue"] = [row, {**row, "conversation_handle": "22"}]
    told = (
        "2 messages wait for warehuose: nothing matches the service name and broker; "
        'did you mean "warehouse"?; brokerd dialog status 11 --broker main '
        f"--address {daemon.address}\n"
    )
    assert run(daemon, "receive", "shop_q", "--ack") == 1
    assert capsys.readouterr().err == f"brokerd: sent from shop_q: {told}"
    assert run(daemon, "receive", "shop_q", "--ack", "--json") == 1
    assert told in capsys.readouterr().err
    assert run(daemon, *LETTER, "--wait", "0") == 1
    assert capsys.readouterr().err == f"brokerd: no reply within 0 s; {told}"


@pytest.mark.rule("PBT-2", "XMT-19")
def test_of_many_that_wait_the_first_are_counted_and_that_there_are_more_is_said_once(
    daemon: SmallDaemon, capsys: Capture
) -> None:
    daemon.views["services"] = [{"name": "shop", "service_queue_id": "shop_q"}]
    rows = [
        {
            "conversation_handle": handle,
            "to_service_name": to,
            "status_key": "connect_failed",
            "transmission_status": "refused",
            **SENT,
        }
        for handle, to in (("11", "warehouse"), ("22", "office"))
    ]
    daemon.views["transmission_queue"], daemon.next["transmission_queue"] = [*rows], "9"
    assert run(daemon, "receive", "shop_q", "--ack", "--broker", "second") == 1
    lines = capsys.readouterr().err.splitlines()
    told = "brokerd: sent from shop_q: "
    at = f"--broker second --address {daemon.address}"
    assert lines == [
        f"{told}1 message waits for warehouse: refused; brokerd dialog status 11 {at}",
        f"{told}1 message waits for office: refused; brokerd dialog status 22 {at}",
        f"{told}these are of the first 2 that wait; see brokerd transmission ls {at}",
    ]


@pytest.mark.rule("BI-C2")
def test_a_table_in_the_place_of_several_is_told_how_to_write_it(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "x.objects.toml"
    path.write_text('[[queue]]\nname = "a"\n[queue]\nname = "b"\n')
    assert main(["config", "check", str(path)]) == 78
    err = capsys.readouterr().err
    assert "\n  fix: where there may be several write [[queue]] for each" in err


def test_a_worker_without_a_daemon_is_told_how_to_start_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app_of_test.py").write_text('import brokerd\napp = brokerd.App("x")\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    address = f"unix:{tmp_path}/none"
    assert main(["worker", "run", "app_of_test:app", "--wait", "0", "--address", address]) == 69
    assert "\n  fix: start it with: brokerd serve" in capsys.readouterr().err
