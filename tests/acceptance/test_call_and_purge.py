"""`brokerd call` and `brokerd queue purge` with a real daemon: what both sides of a dialog see."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.ids import show
from brokerd.protocol.admin_verbs import PURGE_BATCH
from tests.acceptance.one_process import Served

OBJECTS = tomllib.loads(
    """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Question"
[[message_type]]
name = "Answer"
[[contract]]
name = "talk"
types = { Question = "initiator", Answer = "target" }
[[queue]]
name = "asker_q"
[[queue]]
name = "answerer_q"
poison_mode = "park"
[[service]]
name = "asker"
queue = "asker_q"
[[service]]
name = "answerer"
queue = "answerer_q"
contracts = ["talk"]
"""
)
TALK = ("--contract", "talk", "--type", "Question")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, OBJECTS)
    made.start()
    yield made
    made.stop()


def run(served: Served, *words: str) -> int:
    return main([*words, "--address", served.address])


def ask_three(served: Served) -> list[Any]:
    """Begin three dialogs with a message each; return their handles."""
    with brokerd.sync.connect(served.address) as session, session.transaction() as tx:
        handles = [tx.begin_dialog("asker", "answerer", "talk") for _ in range(3)]
        for handle in handles:
            tx.send(handle, b"?", "Question")
    return handles


def answer(served: Served, *, error: bool = False) -> None:
    with brokerd.sync.connect(served.address) as session, session.transaction() as tx:
        (message,) = tx.receive("answerer_q", 1, wait=10)
        if error:
            tx.end(message.handle, error=7, description="not today")
        else:
            tx.send(message.handle, (message.body or b"") + b"!", "Answer")


@pytest.mark.rule("MAN-25")
def test_a_call_prints_the_reply_alone_and_ends_the_dialog(
    served: Served, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    answering = served.when_one_waits(lambda: answer(served))
    assert run(served, "call", "answerer", "why", "--from", "asker", *TALK) == 0
    answering.join()
    assert capfdbinary.readouterr().out == b"why!"
    with brokerd.sync.connect(served.address) as session:
        (told,) = session.browse("answerer_q")
    assert told.is_end


@pytest.mark.rule("MAN-25")
def test_a_call_without_a_reply_leaves_the_message_and_the_dialog(
    served: Served, capsys: Capture
) -> None:
    assert run(served, "call", "answerer", "why", "--from", "asker", *TALK, "--wait", "0") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "do not send it again" in said.err
    assert said.err.count("brokerd dialog") == 1
    assert f"--address {served.address}" in said.err
    answer(served)
    assert run(served, "receive", "asker_q", "--ack") == 0  # the reply can still be received
    assert "why!" in capsys.readouterr().out


@pytest.mark.rule("MAN-25")
def test_a_call_that_is_answered_by_an_error_prints_it_and_fails(
    served: Served, capsys: Capture
) -> None:
    answering = served.when_one_waits(lambda: answer(served, error=True))
    assert run(served, "call", "answerer", "why", "--from", "asker", *TALK) == 1
    answering.join()
    assert "not today" in capsys.readouterr().err


@pytest.mark.rule("MAN-24")
def test_a_purge_deletes_the_messages_and_tells_the_other_sides(
    served: Served, capsys: Capture
) -> None:
    handles = ask_three(served)
    assert run(served, "queue", "alter", "answerer_q", "status=off") == 0
    capsys.readouterr()
    words = ("queue", "purge", "answerer_q", "--error", "17", "--description", "by mistake")
    assert run(served, *words, "--yes") == 0
    assert capsys.readouterr().out.splitlines() == [
        "queue answerer_q has 3 messages",
        "ended 3 dialogs with error 17, with 3 messages",
    ]
    with brokerd.sync.connect(served.address) as session:
        assert list(session.browse("answerer_q")) == []
        with session.transaction() as tx:
            told = [tx.receive("asker_q", 1, conversation=handle, wait=10)[0] for handle in handles]
    errors = [one.error for one in told if one.error]
    assert [(one.number, one.description) for one in errors] == [(17, "by mistake")] * 3


@pytest.mark.rule("MAN-24")
def test_a_purge_leaves_what_a_reader_has(served: Served, capsys: Capture) -> None:
    ask_three(served)
    with brokerd.sync.connect(served.address) as session:
        with session.transaction() as tx:
            tx.receive("answerer_q", 1, wait=10)
            assert run(served, "queue", "purge", "answerer_q", "--yes", "--json") == 0
        assert len(list(session.browse("answerer_q"))) == 0  # the reader has committed
    done = json.loads(capsys.readouterr().out)
    assert (done["dialogs"], done["purged"], done["locked"]) == (2, 2, 1)


@pytest.mark.rule("MAN-24")
def test_a_purge_is_not_done_unless_somebody_says_so(served: Served, capsys: Capture) -> None:
    ask_three(served)
    assert run(served, "queue", "purge", "answerer_q") == 64  # standard input is no terminal
    assert "--yes" in capsys.readouterr().err
    assert run(served, "queue", "purge", "answerer_q", "--dry-run") == 0
    assert capsys.readouterr().out == "queue answerer_q has 3 messages\n"
    with brokerd.sync.connect(served.address) as session:
        assert len(list(session.browse("answerer_q"))) == 3


@pytest.mark.rule("MAN-24", "SX-15")
def test_a_purge_is_recorded(served: Served) -> None:
    ask_three(served)
    before = len(_purges(served))
    assert run(served, "queue", "purge", "answerer_q", "--yes") == 0
    done, begun, *_ = _purges(served)
    assert len(_purges(served)) == before + 2
    assert begun["detail"]["phase"] == "begun"
    counts = {"dialogs": 3, "messages": 3, "locked": 0}
    assert done["detail"].items() >= {"phase": "done", **counts}.items()


def _purges(served: Served) -> list[dict[str, Any]]:
    """The entries of purges, the latest first."""
    with brokerd.sync.connect(served.address, broker="msdb") as session:
        rows = session.view("audit")
    ours = "purge_queue", "main/answerer_q"
    return [
        {**row, "detail": json.loads(str(row["detail"]))}
        for row in rows
        if (row["action"], row["subject"]) == ours
    ]


@pytest.mark.rule("MAN-24", "SX-15")
def test_a_purge_goes_batch_by_batch(served: Served, capsys: Capture) -> None:
    """Each request ends the dialogs of a bounded number of messages."""
    many = 2 * PURGE_BATCH + 1
    with brokerd.sync.connect(served.address) as session:
        with session.transaction() as tx:
            for _ in range(many):
                tx.send(tx.begin_dialog("asker", "answerer", "talk"), b"?", "Question")
        first = session.admin.purge_queue("answerer_q", 1, "gone")
        assert 0 < first.dialogs <= PURGE_BATCH
        assert first.next is not None
        assert _purges(served)[0]["detail"]["phase"] == "begun"  # as after an interruption
    assert run(served, "queue", "purge", "answerer_q", "--yes", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert first.messages + done["purged"] == many
    ended, begun, interrupted, *_ = _purges(served)
    phases = [one["detail"]["phase"] for one in (ended, begun, interrupted)]
    assert phases == ["done", "begun", "begun"]
    assert ended["detail"]["messages"] == done["purged"] > PURGE_BATCH // 2


@pytest.mark.rule("MAN-25")
def test_a_send_prints_the_handle_and_the_id_of_its_conversation(
    served: Served, capsys: Capture
) -> None:
    assert run(served, "send", "--from", "asker", "--to", "answerer", *TALK, "--body", "why") == 0
    out = capsys.readouterr().out
    with brokerd.sync.connect(served.address) as session:
        (waiting,) = session.browse("answerer_q")
    assert out.endswith(f", conversation id {show(waiting.conversation_id)}\n")
