"""Man pages: brokerd(1), a page for each command, and brokerd.toml(5), from the program itself.

Reads:  the command tree, the settings with their meanings, the exit statuses.
Never:  writes the time or the path of a machine: the same tree gives the same pages.

    python -m tools.package.man_pages build/man
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path

import click

from brokerd.cli.examples import EXAMPLES
from brokerd.cli.main import COMMANDS, GROUPS, cli
from brokerd.config.loading import effective, load, meanings
from brokerd.process.exit_statuses import HELP
from brokerd.rule_ids import without_rules
from tools.lock import ROOT

SUMMARY = "dialogs between services that survive crashes"
_WITH_ENDPOINT = {"BROKERD_ENDPOINT__PORT": "4022"}
"""Variables that add a section which the defaults lack, with the defaults of its keys."""
_FILES = (
    ("/etc/brokerd/brokerd.toml", "the settings of the daemon that systemd runs"),
    ("/var/lib/brokerd", "its stores, keys and backups"),
    ("/run/brokerd/brokerd.sock", "where programs connect"),
)


def version() -> str:
    """Return the version of the tree."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: str = document["project"]["version"]
    return found


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    help_of = {entry.name: entry.help for entry in COMMANDS}
    context = click.Context(cli, info_name="brokerd")
    found = {"brokerd.1": _first(help_of), "brokerd.toml.5": _settings()}
    for name in (one for names in GROUPS.values() for one in names):
        command = cli.get_command(context, name)
        assert command is not None, f"{name} is no command"
        found[f"brokerd-{name}.1"] = _page(name, command, help_of[name])
    return found


def _first(help_of: dict[str, str]) -> str:
    lines = [_head("BROKERD", 1), ".SH NAME", rf"brokerd \- {SUMMARY}", ".SH SYNOPSIS"]
    lines += [r".B brokerd", r"[\fB\-\-debug\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]"]
    lines += [".SH DESCRIPTION", _text(cleandoc(cli.help or ""))]
    lines += [_text("Each command has a page of its own, such as brokerd-queue(1).")]
    for title, names in GROUPS.items():
        lines.append(f".SS {_text(title)}")
        lines += [line for name in names for line in _term(name, help_of[name])]
    lines += [".SH FILES", *(line for one in _FILES for line in _term(*one))]
    return _end(lines, ["brokerd.toml(5)"])


def _page(name: str, command: click.Command, summary: str) -> str:
    lines = [_head(f"BROKERD-{name.upper()}", 1), ".SH NAME"]
    lines += [rf"brokerd\-{_text(name)} \- {_text(summary.rstrip('.'))}"]
    if isinstance(command, click.Group):
        lines += [".SH DESCRIPTION", *_help(command), ".SH COMMANDS"]
        for below, one in sorted(command.commands.items()):
            lines += [
                f".SS brokerd {_text(name)} {_text(below)}",
                *_described(f"{name} {below}", one),
            ]
    else:
        lines += [".SH SYNOPSIS", _usage(name, command), ".SH DESCRIPTION", *_help(command)]
        lines += [".SH OPTIONS", *_options(command), *_examples(name)]
    return _end(lines, ["brokerd(1)", "brokerd.toml(5)"])


def _described(words: str, command: click.Command) -> Iterator[str]:
    yield _usage(words, command)
    yield ".PP"
    yield from _help(command)
    yield from _options(command)
    yield from _examples(words)


def _usage(words: str, command: click.Command) -> str:
    rest = " ".join(command.collect_usage_pieces(click.Context(command)))
    return f".B brokerd {_text(words)}\n{_text(rest)}" if rest else f".B brokerd {_text(words)}"


def _help(command: click.Command) -> Iterator[str]:
    paragraphs = re.split(r"\n\s*\n", cleandoc(command.help or "").partition("\f")[0])
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield from (".nf", *map(_text, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _text(" ".join(paragraph.split()))


def _options(command: click.Command) -> Iterator[str]:
    for one in command.params:
        record = one.get_help_record(click.Context(command))
        if isinstance(one, click.Option) and record is not None:
            yield from _term(*record)


def _examples(words: str) -> Iterator[str]:
    if words in EXAMPLES:
        yield from (".PP", "Examples:", ".PP", ".nf", ".RS")
        yield from map(_text, EXAMPLES[words])
        yield from (".RE", ".fi")


def _settings() -> str:
    lines = [_head("BROKERD.TOML", 5), ".SH NAME", r"brokerd.toml \- settings of brokerd"]
    lines += [".SH DESCRIPTION"]
    lines += [
        _text(
            "TOML with the sections and keys below. Durations carry a unit or are seconds, sizes "
            "carry one too; relative paths are relative to the file. The environment overrides a "
            "key: BROKERD_ENDPOINT__PORT=4022. Unknown keys are errors. brokerd-config(1) checks a "
            "file."
        )
    ]
    meaning = {key: without_rules(text) for key, text in meanings().items()}
    section = ""
    here = f"{Path.cwd()}/"  # the defaults of paths are relative to it
    for key, found, _ in effective(load(None, environ=_WITH_ENDPOINT)):
        value = found.replace(here, "")
        if key.partition(".")[0] != section:
            section = key.partition(".")[0]
            lines.append(f".SH [{_text(section).upper()}]")
        lines += _term(key, f"{meaning[key]} Default: {value}" if value else meaning[key])
    return _end(lines, ["brokerd(1)", "brokerd-config(1)"])


def _head(title: str, section: int) -> str:
    return f'.TH "{title}" "{section}" "" "brokerd {version()}" "brokerd"'


def _term(term: str, meaning: str) -> list[str]:
    return [".TP", rf"\fB{_text(term)}\fR", _text(meaning)]


def _end(lines: list[str], others: Sequence[str]) -> str:
    lines += [".SH EXIT STATUS", _text(" ".join(HELP.replace("\b", "").split()))]
    lines += [".SH SEE ALSO", _text(", ".join(others))]
    return "\n".join(line for line in lines if line) + "\n"


def _text(text: str) -> str:
    """Return text for roff: nothing in it is a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line[:1] in (".", "'") else line for line in text.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages into a folder."""
    parser = argparse.ArgumentParser(prog="man_pages", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
