"""The page that has Service Broker beside brokerd: complete, and without a name that has rotted."""

import re
from pathlib import Path

import pytest

import brokerd
from brokerd.admin.views.columns import VIEWS as OURS
from brokerd.client.session import Session as ClientSession
from brokerd.client.transaction import Transaction
from brokerd.config.loading import meanings
from brokerd.objects.declared import Kind
from brokerd.objects.forms import KEYS
from brokerd.tsql.names import COLUMNS, FUNCTIONS, VIEWS
from brokerd.tsql.objects import BROKER_OPTIONS, OBJECTS, SECURITY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "service-broker.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
THEIRS = "\n".join(re.split(r" \| ", line)[0] for line in PAGE.splitlines() if line.startswith("|"))
VERBS = (
    *("BEGIN DIALOG", "BEGIN CONVERSATION TIMER", "SEND ON CONVERSATION", "RECEIVE", "WAITFOR"),
    *("GET CONVERSATION GROUP", "MOVE CONVERSATION", "END CONVERSATION", "WITH CLEANUP"),
    *("WITH ERROR", "TOP", "INTO", "WHERE", "TIMEOUT", "RELATED_CONVERSATION"),
    *("RELATED_CONVERSATION_GROUP", "LIFETIME", "ENCRYPTION", "ON CONTRACT", "MESSAGE TYPE"),
)
OPTIONS = re.findall(r'"([A-Z]+_[A-Z_]+)"', (ROOT / "brokerd" / "tsql" / "objects.py").read_text())


@pytest.mark.rule("IMP-19")
@pytest.mark.parametrize(
    "word",
    sorted(
        {
            *(" ".join(words) for words in OBJECTS if words != ("DATABASE",)),
            *(" ".join(words) for words in SECURITY if words != ("SYMMETRIC", "KEY")),
            *(word for word in BROKER_OPTIONS),
            *(word for word in OPTIONS if not word.startswith("SERVICE_BROKER")),
            *(f"sys.{name}" for name in VIEWS),
            *COLUMNS,
            *(name.upper() for name in FUNCTIONS),
            *VERBS,
        }
    ),
)
def test_what_the_import_reads_is_on_the_page(word: str) -> None:
    assert re.search(rf"(?<![\w_]){re.escape(word)}(?![\w])", THEIRS), word


@pytest.mark.rule("IMP-19")
def test_each_row_says_what_it_is() -> None:
    verdicts = ("same", "different", "none", "ours alone")
    rows = [row for row in ROWS if len(row) == 3 and not set(row[0]) <= set("-|")]
    rows = [row for row in rows if row[0] != "Service Broker"]
    assert len(rows) > 120
    assert [row for row in rows if not row[2].startswith(verdicts)] == []


@pytest.mark.rule("IMP-19")
def test_each_view_of_ours_exists() -> None:
    named = set(re.findall(r"views\.md#(\w+)", PAGE))
    known = {*OURS}
    assert named <= known
    assert {view.ours for view in VIEWS.values() if view.ours} <= known
    assert {view.ours for view in VIEWS.values() if view.ours} <= named


@pytest.mark.rule("IMP-19")
def test_each_setting_of_ours_exists() -> None:
    named = set(re.findall(r"`((?:endpoint|instance)\.\w+)`", PAGE))
    assert len(named) > 6
    assert named <= set(meanings())


@pytest.mark.rule("IMP-19")
def test_each_verb_of_ours_exists() -> None:
    for owner, name in re.findall(r"`(session|tx)\.(\w+)`", PAGE):
        kind = brokerd.app.session.Session if owner == "session" else Transaction
        assert hasattr(kind, name), f"{owner}.{name}"
    assert issubclass(brokerd.app.session.Session, ClientSession)


@pytest.mark.rule("IMP-19")
def test_each_table_of_ours_exists() -> None:
    assert set(re.findall(r"\[\[(\w+)\]\]", PAGE)) <= {kind.value for kind in KEYS}
    assert Kind.QUEUE in KEYS
