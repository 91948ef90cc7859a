"""Rule report: the rules of docs/spec, with and without a test that names them.

Reads:  docs/spec/*.md for the rules, docs/spec/untestable.md for those that no test can show, and
        the marks `pytest.mark.rule("DLP-26")` under tests, without importing anything.
Writes: build/rules.json.
Fails:  if a test or untestable.md names a rule that does not exist, or a rule is defined twice.
"""

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = Path("docs/spec")
UNTESTABLE = SPEC / "untestable.md"
REPORT = Path("build/rules.json")
NOTES = frozenset({"DIS"})  # chapters whose entries are notes and need no test

_ID = r"[A-Z]{2,5}-[A-Z]?\d+"
_LISTED = re.compile(rf"- (?:\*\*)?({_ID})(?![\w-])")  # - RTE-7 text, - **REL-1 Title.** text
_IN_TABLE = re.compile(rf"\| *(?:\*\*({_ID})\*\*|({_ID}) *\|)")  # | **DLG-T1** |, | ERR-8408 |
_LATER_ON_LINE = re.compile(rf"\*\*({_ID})(?![\w-])")  # - **CHK-6** text **CHK-7** text
_WITHDRAWN = re.compile(rf"(?:\*\*)?{_ID}(?:\*\*)?[ |:(*]*withdrawn\b|\*withdrawn\*", re.IGNORECASE)
_ROW = re.compile(r"\|([^|]*)\|(.*)\|\s*$")


class UnreadableMark(Exception):
    """A mark names its rule by something other than a string literal."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule with the place of its definition."""

    id: str
    place: Place
    withdrawn: bool

    @property
    def chapter(self) -> str:
        """The letters before the number."""
        return self.id.partition("-")[0]


@dataclass(kw_only=True)
class Chapter:
    """The figures of one chapter."""

    rules: int = 0
    tested: int = 0
    untestable: int = 0
    missing: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Report:
    """The chapters in the order of the documents, and the problems with the names of rules."""

    chapters: dict[str, Chapter]
    problems: list[str]


def rules_in(text: str, path: Path) -> Iterator[Rule]:
    """Yield every rule that this document defines, in order, without notes."""
    for number, line in enumerate(text.splitlines(), start=1):
        for start, end in _definitions(line):
            definition = line[start:end]
            found = re.search(_ID, definition)
            assert found is not None
            withdrawn = _WITHDRAWN.search(definition) is not None
            place = Place(path=path, line=number)
            rule = Rule(id=found.group(), place=place, withdrawn=withdrawn)
            if rule.chapter not in NOTES:
                yield rule


def _definitions(line: str) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each definition on a line, which may have several in bold."""
    first = _LISTED.match(line) or _IN_TABLE.match(line)
    if first is None:
        return
    starts = [0]
    if line.startswith("- **"):
        starts += [m.start() for m in _LATER_ON_LINE.finditer(line, first.end())]
    yield from zip(starts, [*starts[1:], len(line)], strict=True)


def marks_in(source: str, path: Path) -> Iterator[tuple[str, Place]]:
    """Yield every rule id in a `pytest.mark.rule(...)` anywhere in this module.

    Raises:
        UnreadableMark: an argument is not a string literal.
    """
    for node in ast.walk(ast.parse(source, filename=str(path))):
        match node:
            case ast.Call(func=ast.Attribute(value=mark, attr="rule"), args=arguments) if (
                ast.unparse(mark) in {"pytest.mark", "mark"}
            ):
                place = Place(path=path, line=node.lineno)
                for argument in arguments:
                    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                        raise UnreadableMark(f"{place}: a rule id must be written out as a string")
                    yield argument.value, place
            case _:
                pass


def untestable_in(text: str, path: Path) -> Iterator[tuple[str, str, Place]]:
    """Yield the rows of the table of untestable rules: id, reason, place."""
    for number, line in enumerate(text.splitlines(), start=1):
        row = _ROW.match(line)
        if row is not None and re.fullmatch(_ID, row.group(1).strip()):
            yield row.group(1).strip(), row.group(2).strip(), Place(path=path, line=number)


def examine(root: Path) -> Report:
    """Compare the rules with the tests and the list of untestable rules, below this folder."""
    problems: list[str] = []
    rules = _unique(_all_rules(root), problems)
    tested = _known(_all_marks(root, problems), rules, problems)
    untestable = _known(_all_untestable(root, problems), rules, problems)
    problems += [
        f"{UNTESTABLE}: {name} has a test, so its row must go"
        for name in sorted(untestable & tested)
    ]
    chapters: dict[str, Chapter] = {}
    for rule in rules.values():
        chapter = chapters.setdefault(rule.chapter, Chapter())
        if rule.withdrawn:
            continue
        chapter.rules += 1
        if rule.id in tested:
            chapter.tested += 1
        elif rule.id in untestable:
            chapter.untestable += 1
        else:
            chapter.missing.append(rule.id)
    return Report(chapters=chapters, problems=problems)


def _all_rules(root: Path) -> Iterator[Rule]:
    for path in sorted((root / SPEC).glob("*.md")):
        relative = path.relative_to(root)
        if relative != UNTESTABLE:
            yield from rules_in(path.read_text(encoding="utf-8"), relative)


def _all_marks(root: Path, problems: list[str]) -> Iterator[tuple[str, Place]]:
    for path in sorted((root / "tests").rglob("*.py")):
        try:
            yield from marks_in(path.read_text(encoding="utf-8"), path.relative_to(root))
        except (SyntaxError, UnreadableMark) as error:
            problems.append(str(error))


def _all_untestable(root: Path, problems: list[str]) -> Iterator[tuple[str, Place]]:
    path = root / UNTESTABLE
    if not path.is_file():
        return
    for name, reason, place in untestable_in(path.read_text(encoding="utf-8"), UNTESTABLE):
        if not reason:
            problems.append(f"{place}: {name} is listed without a reason")
        yield name, place


def _unique(rules: Iterable[Rule], problems: list[str]) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for rule in rules:
        first = found.setdefault(rule.id, rule)
        if first is not rule:
            problems.append(f"{rule.place}: {rule.id} is defined already at {first.place}")
    return found


def _known(
    named: Iterable[tuple[str, Place]], rules: dict[str, Rule], problems: list[str]
) -> set[str]:
    """Return the names that belong to rules in force; add a problem for each other name."""
    known = set()
    for name, place in named:
        if name not in rules:
            problems.append(f"{place}: there is no rule {name}")
        elif rules[name].withdrawn:
            problems.append(f"{place}: rule {name} is withdrawn")
        else:
            known.add(name)
    return known


def as_json(report: Report) -> str:
    """Return the chapters as JSON, for other programs."""
    chapters = {name: vars(chapter) for name, chapter in report.chapters.items()}
    return json.dumps({"chapters": chapters}, indent=2) + "\n"


def as_text(report: Report) -> str:
    """Return the report as a table: a line for each chapter, and the total."""
    heading = f"{'chapter':8}{'rules':>7}{'tested':>8}{'untestable':>12}{'missing':>9}"
    lines = [heading]
    total = Chapter()
    for name, chapter in report.chapters.items():
        lines.append(_line(name, chapter))
        total.rules += chapter.rules
        total.tested += chapter.tested
        total.untestable += chapter.untestable
        total.missing += chapter.missing
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, chapter: Chapter) -> str:
    figures = f"{chapter.rules:7}{chapter.tested:8}{chapter.untestable:12}{len(chapter.missing):9}"
    return f"{name:8}{figures}"


def main(root: Path = ROOT) -> int:
    """Print and write the report; return 1 if names of rules have problems, else 0."""
    report = examine(root)
    target = root / REPORT
    target.parent.mkdir(exist_ok=True)
    target.write_text(as_json(report), encoding="utf-8")
    print(as_text(report))
    print(f"rules: written to {REPORT}")
    for problem in report.problems:
        print(f"rules: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
