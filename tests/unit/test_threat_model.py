"""The threat model names attackers, defences that have tests, and what is left (SX-20)."""

import re
from pathlib import Path

import pytest

from tools.rules import SPEC, rules_in

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "threat-model.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ATTACKERS = (
    "A stranger on the network",
    "Whoever carries the traffic",
    "A peer that has proved who it is",
    "A user of this machine",
    "A client with some rights",
    "Handler code",
    "Whoever can read or write the disk",
)

pytestmark = pytest.mark.rule("SX-20")


def part(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("title", ATTACKERS)
def test_each_attacker_has_defences_and_something_left(title: str) -> None:
    text = part(title)
    assert len(ROW.findall(text)) > 4
    assert "**What is left.** " in text


def test_each_defence_names_a_test_that_exists_or_is_planned() -> None:
    rows = [row for title in ATTACKERS for row in ROW.findall(part(title)) if "---" not in row[0]]
    rows = [row for row in rows if row[0] != "tries to"]
    assert len(rows) > 35
    for tries, stands, rules, shown in rows:
        named = re.findall(r"tests/[\w./-]+", shown)
        assert named or shown.strip() == "planned", tries
        assert [one for one in named if not (ROOT / one).exists()] == [], tries
        assert stands.strip() != "", tries
        assert re.findall(r"[A-Z]{2,4}-[A-Z]?\d+", rules), tries


def test_each_rule_exists() -> None:
    known = {
        rule.id
        for path in (ROOT / SPEC).glob("*.md")
        for rule in rules_in(path.read_text(), path)
        if not rule.withdrawn
    }
    named = set(re.findall(r"\b[A-Z]{2,4}-[A-Z]?\d+\b", TEXT)) - {"AES-256"}
    assert named - known == set()
