"""The reference pages: fresh, complete, and valid Markdown."""

import re
import shlex
from pathlib import Path

import click
import pytest

import brokerd
from brokerd.admin.views.columns import COLUMNS
from brokerd.cli.examples import EXAMPLES
from brokerd.cli.main import COMMANDS, GROUPS
from brokerd.cli.object_keys import KEYS
from brokerd.config.loading import meanings
from brokerd.http.metrics import families
from brokerd.objects import event_names
from brokerd.process.exit_statuses import ROWS
from brokerd.telemetry import logs
from brokerd.telemetry.log_events import EVENTS
from brokerd.telemetry.metric_names import METRICS
from tools.reference import markdown, python_api
from tools.reference.commands import every_command
from tools.reference.errors import every_error
from tools.reference.pages import DIRECTORY, PAGES, ROOT, stale, write

TEXT = {name: render() for name, render in PAGES.items()}


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {heading}"
    return found[1]


def test_the_pages_are_fresh() -> None:
    assert stale() == [], "run `make reference`"


def test_a_page_that_is_old_or_missing_is_found_and_written(tmp_path: Path) -> None:
    assert write(tmp_path) == list(PAGES)
    assert stale(tmp_path) == []
    (tmp_path / DIRECTORY / "views.md").write_text("old")
    (tmp_path / DIRECTORY / "errors.md").unlink()
    assert sorted(write(tmp_path)) == ["errors.md", "views.md"]
    assert stale(tmp_path) == []


def test_every_setting_has_a_meaning_and_is_on_its_page() -> None:
    assert [key for key, meaning in meanings().items() if not meaning] == []
    for path in meanings():
        name, key = path.split(".")
        assert f"| `{key}` |" in section(TEXT["settings.md"], name)


def test_every_key_of_a_declared_object_is_on_its_page() -> None:
    for kind, keys in KEYS.items():
        below = section(TEXT["settings.md"], kind.replace("_", " "))
        assert all(f"| `{key.name}` |" in below for key in keys), kind


USERS: tuple[str, ...] = ("reference", "how-to", "tutorial")
"""Folders of documents whose readers need not know the specification."""
RULE_ID = re.compile(r"\b(?!UTF-|SHA-|CHK-)[A-Z]{2,5}-[A-Z]?\d+\b")
"""The id of a rule; the ids of broken promises (CHK), which a program prints, are no secret."""


@pytest.mark.rule("MON-83")
def test_no_text_for_users_names_a_rule() -> None:
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in USERS
        for path in (ROOT / "docs" / folder).glob("*.md")
    }
    texts |= {words: command.get_help(click.Context(command)) for words, command in every_command()}
    texts |= {family.name: family.documentation for family in families(())}
    found = {name: RULE_ID.findall(text) for name, text in texts.items()}
    assert {name: ids for name, ids in found.items() if ids} == {}


def test_every_column_of_every_view_is_on_its_page() -> None:
    for view, columns in COLUMNS.items():
        below = section(TEXT["views.md"], view)
        assert [one for one in columns if f"| `{one}` |" not in below] == []


@pytest.mark.rule("MON-16")
def test_every_event_and_subclass_is_on_its_page() -> None:
    for event, subclasses in logs.SUBCLASSES.items():
        below = section(TEXT["events.md"], event)
        assert [one for one in subclasses if f"| `{one}` |" not in below] == []
    below = section(TEXT["events.md"], "Event notifications")
    assert [one for one in event_names.ALL if f"| `{one}` |" not in below] == []


def test_every_event_of_the_log_has_a_constant() -> None:
    assert set(EVENTS) <= {value for value in vars(logs).values() if isinstance(value, str)}


def test_every_figure_is_on_its_page() -> None:
    for scope, metrics in METRICS.items():
        below = section(TEXT["metrics.md"], f"Scope {scope}")
        assert [one for one in metrics if f"| `{one.name}` |" not in below] == []


def test_every_error_is_on_its_page_with_its_exit_status() -> None:
    for error in every_error():
        assert f"| `{error.code}` |" in TEXT["errors.md"], error
    for row in ROWS:
        assert f"| `{row.status}` |" in TEXT["exit-statuses.md"]


def test_every_command_and_option_is_on_its_page() -> None:
    for words, command in every_command():
        below = section(TEXT["commands.md"], f"brokerd {words}")
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden:
                assert one.opts[-1] in below, words
                assert one.help, f"{words} {one.opts[-1]} has no help"


def test_every_method_of_the_python_api_is_on_its_page() -> None:
    for kinds in python_api.PARTS.values():
        for kind in kinds:
            for one in python_api.methods(kind):
                assert section(TEXT["python.md"], f"{kind.__name__}.{one.name}")
    named = {kind.__name__ for kinds in python_api.PARTS.values() for kind in kinds}
    classes = {name for name in brokerd.__all__ if isinstance(getattr(brokerd, name), type)}
    assert classes - named == {"BrokerError", "RemoteError", "Timer"}


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(entry.name for entry in COMMANDS)


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_is_of_its_command_and_is_understood(words: str) -> None:
    command = dict(every_command())[words]
    for line in EXAMPLES[words]:
        given = shlex.split(line)
        path = ["brokerd", *words.split()]
        assert given[: len(path)] == path
        try:
            command.make_context(words, given[len(path) :]).close()
        except click.BadParameter as error:
            assert "does not exist" in error.message  # noqa: PT017  # its file is an example, too


def test_what_has_a_meaning_in_markdown_is_escaped_but_in_code() -> None:
    assert markdown.prose("a < b, `c < d`\n and *e*|f") == r"a &lt; b, `c < d` and \*e\*\|f"
    assert markdown.table(("a", "b"), [("1|2", "`x|y`")]) == (
        "| a | b |\n| --- | --- |\n| 1\\|2 | `x\\|y` |"
    )


def test_pages_say_what_made_them() -> None:
    for name in PAGES:
        assert "make reference" in (ROOT / DIRECTORY / name).read_text().partition("\n")[0]
