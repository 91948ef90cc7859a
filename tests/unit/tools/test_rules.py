"""The rule report finds every rule and every mark, and refuses names that do not exist."""

import json
from pathlib import Path

import pytest

from tools.rules import UnreadableMark, as_json, as_text, examine, main, marks_in, rules_in

SPEC = Path("docs/spec/some.md")
TEST = Path("tests/test_some.py")


def ids(text: str) -> list[str]:
    return [rule.id for rule in rules_in(text, SPEC)]


def named(source: str) -> list[str]:
    return [name for name, _ in marks_in(source, TEST)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("- RTE-7 Replies go back.", ["RTE-7"]),
        ("- **OBJ-1** Each database has an identifier.", ["OBJ-1"]),
        ("- **PBT-2 Silently stuck.** A blank status.", ["PBT-2"]),
        ("- **REL-1 Durable before confirm.** Every success.", ["REL-1"]),
        ("- **CHK-11** readers. **CHK-12** timers.", ["CHK-11", "CHK-12"]),
        ("| **DLG-T1** | I | none | `begin_dialog` | SO |", ["DLG-T1"]),
        ("| **DLG-M1** A `end` | kept |", ["DLG-M1"]),
        ("| RTE-V1 | AL only | own dialog | local |", ["RTE-V1"]),
        ("| ERR-8408 | 8408 | ContractNotSupported |", ["ERR-8408"]),
        ("| ERR-B1 | | several |", ["ERR-B1"]),
        ("| BI-F1 | not TLS | close |", ["BI-F1"]),
        ("| FP-1 | kill -9 | restart |", ["FP-1"]),
    ],
)
def test_each_form_of_a_definition_is_found(line: str, expected: list[str]) -> None:
    assert ids(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "| DIS-3 | port in an address | optional |",
        "- DIS-3 is a note",
        "| D01-D04 | broker exists |",
        "Before it RTE-7 and **RTE-8** say more.",
        "  *Shown by* SIM, CHK-8 taps the wire.",
        "- Every rule has an ID (`RTE-7`).",
        "| RTE-7 and RTE-8 | are meant |",
        "- RTE-7-bis is no rule",
    ],
)
def test_notes_and_mentions_are_no_definitions(line: str) -> None:
    assert ids(line) == []


def test_a_mention_in_a_plain_item_defines_nothing() -> None:
    assert ids("- CLK-2 Every tick: purge (DSP-9), then **TRN-14**.") == ["CLK-2"]


@pytest.mark.parametrize(
    ("line", "withdrawn"),
    [
        ("- XMT-3 withdrawn", True),
        ("- **XMT-3** *withdrawn*: see XMT-4", True),
        ("- XMT-3 (withdrawn) said something", True),
        ("| XMT-3 | withdrawn |", True),
        ("- XMT-7 Fragments still queued are withdrawn.", False),
        ("- **CHK-6** *withdrawn*", True),
    ],
)
def test_withdrawn_rules_are_known_by_the_word_after_the_id(line: str, withdrawn: bool) -> None:
    assert [rule.withdrawn for rule in rules_in(line, SPEC)] == [withdrawn]


def test_withdrawal_touches_only_its_own_part_of_a_line() -> None:
    rules = rules_in("- **CHK-6** end once. **CHK-7** *withdrawn* **CHK-8** wire.", SPEC)
    assert [(rule.id, rule.withdrawn) for rule in rules] == [
        ("CHK-6", False),
        ("CHK-7", True),
        ("CHK-8", False),
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('@pytest.mark.rule("DLP-26")\ndef test_a(): ...', ["DLP-26"]),
        ('@pytest.mark.rule("DLP-26", "DLP-27")\nasync def test_a(): ...', ["DLP-26", "DLP-27"]),
        ('pytestmark = pytest.mark.rule("REL-1")', ["REL-1"]),
        ('pytestmark = [pytest.mark.rule("REL-1"), pytest.mark.slow]', ["REL-1"]),
        ('CASES = [pytest.param(1, marks=pytest.mark.rule("SND-2"))]', ["SND-2"]),
        ('class TestA:\n    @pytest.mark.rule("RCV-1")\n    def test_a(self): ...', ["RCV-1"]),
        ('from pytest import mark\n@mark.rule("RCV-2")\ndef test_a(): ...', ["RCV-2"]),
        ("TEXT = 'pytest.mark.rule(\"RCV-3\")'", []),
        ('table.rule("RCV-4")', []),
    ],
)
def test_marks_are_read_wherever_they_stand(source: str, expected: list[str]) -> None:
    assert named(source) == expected


@pytest.mark.parametrize(
    "source", ["@pytest.mark.rule(ID)\ndef test_a(): ...", "pytest.mark.rule(*A)"]
)
def test_a_mark_that_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(UnreadableMark, match=r"tests/test_some\.py:1"):
        named(source)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    spec = tmp_path / "docs" / "spec"
    spec.mkdir(parents=True)
    (spec / "a.md").write_text("- RCV-10 x\n- RCV-2 x\n- RCV-3 withdrawn\n- CLP-1 x\n- RCV-4 x\n")
    (spec / "untestable.md").write_text("# Table\n| id | reason |\n|---|---|\n| RCV-4 | who? |\n")
    (tmp_path / "tests").mkdir()
    write_test(tmp_path, 'pytestmark = pytest.mark.rule("CLP-1")')
    return tmp_path


def write_test(project: Path, source: str) -> None:
    (project / "tests" / "test_it.py").write_text(source)


def test_the_json_has_the_promised_shape_with_missing_in_document_order(project: Path) -> None:
    assert json.loads(as_json(examine(project))) == {
        "chapters": {
            "RCV": {"rules": 3, "tested": 0, "untestable": 1, "missing": ["RCV-10", "RCV-2"]},
            "CLP": {"rules": 1, "tested": 1, "untestable": 0, "missing": []},
        }
    }


def test_the_text_has_a_line_a_chapter_and_the_sum(project: Path) -> None:
    lines = [line.split() for line in as_text(examine(project)).splitlines()]
    assert lines[1:] == [
        ["RCV", "3", "0", "1", "2"],
        ["CLP", "1", "1", "0", "0"],
        ["all", "4", "1", "1", "2"],
    ]


def test_a_clean_project_passes_and_leaves_the_file(project: Path) -> None:
    assert main(project) == 0
    assert (
        json.loads((project / "build" / "rules.json").read_text())["chapters"]["CLP"]["rules"] == 1
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("RCV-99", "there is no rule RCV-99"), ("RCV-3", "rule RCV-3 is withdrawn")],
)
def test_a_test_that_names_no_rule_in_force_fails(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    write_test(project, f'\npytestmark = pytest.mark.rule("{name}")')
    assert main(project) == 1
    assert f"tests/test_it.py:2: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("| RCV-99 | a person |", "there is no rule RCV-99"),
        ("| RCV-2 | |", "RCV-2 is listed without a reason"),
        ("| CLP-1 | a person |", "CLP-1 has a test, so its row must go"),
    ],
)
def test_a_wrong_row_of_the_untestable_fails(project: Path, row: str, message: str) -> None:
    (project / "docs" / "spec" / "untestable.md").write_text(row + "\n")
    assert [problem for problem in examine(project).problems if message in problem]


def test_a_rule_defined_twice_fails(project: Path) -> None:
    (project / "docs" / "spec" / "b.md").write_text("\n- **RCV-2** again\n")
    assert examine(project).problems == [
        "docs/spec/b.md:2: RCV-2 is defined already at docs/spec/a.md:2"
    ]


def test_a_new_chapter_in_a_new_document_is_found(project: Path) -> None:
    (project / "docs" / "spec" / "b.md").write_text("- NEW-1 something\n")
    assert examine(project).chapters["NEW"].missing == ["NEW-1"]


def test_a_test_module_that_does_not_parse_is_a_problem_not_a_crash(project: Path) -> None:
    write_test(project, "def broken(:")
    assert main(project) == 1
