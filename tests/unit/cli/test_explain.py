"""`brokerd explain`: a page for each code that commands and programs print."""

import json
import re

import pytest

from brokerd import errors
from brokerd.admin.doctor.codes import CODES
from brokerd.cli.explain import entries, find
from brokerd.cli.main import main
from brokerd.config.loading import meanings
from brokerd.errors import FOUND_BY_BROKERS, BrokerError
from brokerd.routing.reasons import DropReason, Reason

Capture = pytest.CaptureFixture[str]


def error_classes() -> list[type[BrokerError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, BrokerError) and "code" in vars(one)]


@pytest.mark.rule("MON-83")
@pytest.mark.parametrize("code", ["-8494", "8494", "-8408"])
def test_a_number_is_explained_with_and_without_its_minus(code: str, capsys: Capture) -> None:
    assert main(["explain", code]) == 0
    assert code.lstrip("-") in capsys.readouterr().out


@pytest.mark.rule("MON-83")
def test_everything_that_is_printed_can_be_explained() -> None:
    known = entries()
    for code in (
        *CODES,
        *Reason,
        *DropReason,
        *meanings(),
        *map(str, FOUND_BY_BROKERS),
        *(one.code for one in error_classes()),
        *(one.__name__ for one in error_classes()),
        *("queue.max_messages", "78", "9750", "8408", "bench_failed", "d45", "QUEUE_DISABLED"),
    ):
        for one in find(code, known):
            assert one.meaning, code
            assert one.meaning.endswith((".", "!", "?")) or one.kind == "setting"


@pytest.mark.rule("MON-83")
def test_a_reason_why_messages_wait_says_where_to_look() -> None:
    known = entries()
    for reason in Reason:
        (one,) = [found for found in find(reason, known) if found.kind == "reason"]
        assert "`brokerd doctor`" in one.cure


@pytest.mark.rule("MON-83")
def test_no_explanation_names_a_rule() -> None:
    rule = re.compile(r"\b[A-Z]{2,5}-[A-Z]?\d+")
    named = [(one.code, text) for one in entries() for text in (one.meaning, one.cure)]
    assert [one for one in named if rule.search(one[1])] == []


@pytest.mark.rule("MON-83")
@pytest.mark.parametrize(
    "words", [["binding", "create", "--help"], ["config", "show", "--explain"]]
)
def test_no_other_text_made_from_the_code_names_a_rule(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    assert re.search(r"\([A-Z]{2,5}-\d+", capsys.readouterr().out) is None


@pytest.mark.rule("MON-83")
def test_an_error_without_a_message_of_its_own_names_no_rule() -> None:
    assert str(errors.QueueDisabled()) == "The queue is off."


@pytest.mark.rule("MON-83")
def test_an_explanation_says_what_it_is_and_what_helps(capsys: Capture) -> None:
    assert main(["explain", "D45", "QueueDisabled", "clients.listen"]) == 0
    text = capsys.readouterr().out
    assert "D45: finding\n" in text
    assert "Messages wait in a queue and nothing receives them." in text
    assert "queue_disabled: error (also QueueDisabled" in text
    assert "clients.listen: setting" in text
    assert main(["explain", "D45", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["kind"], one["code"]) == ("finding", "D45")
    assert one["cure"]


@pytest.mark.rule("MON-83")
def test_a_section_lists_its_settings_and_nothing_lists_all(capsys: Capture) -> None:
    assert {one.code for one in find("store.min_free", entries())} == {"store.min_free"}
    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("finding:\n  D01  ")
    assert max(map(len, text.splitlines())) <= 100
    assert main(["explain", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(entries())


@pytest.mark.rule("MON-83")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("queue_disbled", "queue_disabled"),
        ("QueueDisabeld", "QueueDisabled"),
        ("clients.listn", "clients.listen"),
    ],
)
def test_what_is_mistyped_gets_the_nearest(capsys: Capture, wrong: str, right: str) -> None:
    assert main(["explain", wrong]) == 67
    assert f"nothing is called '{wrong}'; did you mean \"{right}\"?" in capsys.readouterr().err
