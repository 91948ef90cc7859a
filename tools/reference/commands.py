"""The page of the commands: the whole tree, in the groups of `brokerd --help`."""

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from brokerd.cli.examples import EXAMPLES
from brokerd.cli.main import GROUPS, cli
from tools.reference.markdown import code, fenced, page, prose, sentence, table

FILE = "commands.md"
_INTRODUCTION = """
Every command prints help with `--help` and, where the table says so, JSON with `--json`. When a
command refuses something, it says why on standard error, in one screen, and ends with one of the
[exit statuses](exit-statuses.md).

Commands that talk to a daemon find it by `--address`, else by `-c FILE`, else by the environment
variables `BROKERD_ADDRESS` and `BROKERD_CONFIG`, else at the
[default address](files.md#which-daemon-is-asked), which is not that of programs.
"""


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is not a group, after the words that call it, group by group."""
    context = click.Context(cli, info_name="brokerd")
    for names in GROUPS.values():
        for name in names:
            yield from _below(context, name)


def _below(context: click.Context, name: str) -> Iterator[tuple[str, click.Command]]:
    command = cli.get_command(context, name)
    assert command is not None, f"{name} is no command"
    if isinstance(command, click.Group):
        for below, one in sorted(command.commands.items()):
            yield f"{name} {below}", one
    else:
        yield name, command


def render() -> str:
    """Return the page."""
    context = click.Context(cli, info_name="brokerd")
    parts = []
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += _command(context, name)
    return page("Commands", _INTRODUCTION, *parts)


def _command(context: click.Context, name: str) -> Iterator[str]:
    command = cli.get_command(context, name)
    if isinstance(command, click.Group):
        yield f"### brokerd {name}"
        yield sentence(_summary(command))
        for words, one in _below(context, name):
            yield from _described(words, one, level=4)
    else:
        for words, one in _below(context, name):
            yield from _described(words, one, level=3)


def _described(words: str, command: click.Command, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} brokerd {words}"
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield fenced([f"brokerd {words} {usage}".rstrip()])
    yield from _help(command)
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield table(("Option", "Meaning"), [_option(command, one) for one in options])
    if words in EXAMPLES:
        yield "Examples:" if len(EXAMPLES[words]) > 1 else "Example:"
        yield fenced(EXAMPLES[words], "sh")


def _summary(command: click.Command) -> str:
    return cleandoc(command.help or "").partition("\n\n")[0]


def _help(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of the help; a paragraph that must not be wrapped is a code block."""
    for paragraph in re.split(r"\n\s*\n", cleandoc(command.help or "").partition("\f")[0]):
        if paragraph.startswith("\b"):
            yield fenced(paragraph.splitlines()[1:])
        elif paragraph.strip():
            yield prose(paragraph)


def _option(command: click.Command, option: click.Option) -> tuple[str, str]:
    record = option.get_help_record(click.Context(command))
    assert record is not None, "hidden options are left out"
    names, meaning = record
    # A bar in a code span in a table is escaped for GitHub, and MkDocs shows the backslash.
    return code(" ".join(names.replace("|", " or ").split())), prose(meaning)
