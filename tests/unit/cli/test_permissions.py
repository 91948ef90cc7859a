"""Every command says which verbs it asks for, so that what it needs is in one table (SX-3)."""

from collections.abc import Iterator

import click
import pytest

from brokerd.cli.main import cli
from brokerd.cli.permissions import VERBS
from brokerd.protocol.client_verbs import VERB_NAMES


def leaves(command: click.Command, *path: str) -> Iterator[str]:
    """The commands below one, by their words."""
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, *path, name)


@pytest.mark.rule("SX-3")
def test_every_command_is_in_the_table() -> None:
    missing = set(leaves(cli)) - VERBS.keys()
    assert not missing, f"say in cli/permissions.py which verbs these ask for: {sorted(missing)}"


@pytest.mark.rule("SX-3")
def test_the_table_names_only_verbs_and_commands_that_exist() -> None:
    assert not {verb for verbs in VERBS.values() for verb in verbs} - VERB_NAMES
    gone = VERBS.keys() - set(leaves(cli))
    assert not gone
