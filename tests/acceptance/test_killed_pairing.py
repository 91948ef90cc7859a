"""A daemon that is killed in the midst of a pairing: pairing again mends it (SEC-61)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_peer_pair import ADDRESSES, Machine, line_of


class Dying(Machine):
    """A daemon that ends between the two commits, for as long as it is told to."""

    is_dying = False

    def serve_command(self) -> list[str]:
        command = super().serve_command()
        if self.is_dying:
            command[command.index("brokerd")] = "tests.acceptance.dying_pairing"
        return command

    def names(self, *words: str) -> list[Any]:
        """Return the rows of a list."""
        done = self.run(*words, "--json", "-c", str(self.settings))
        assert done.returncode == 0, done.stderr
        found: Sequence[Any] = json.loads(done.stdout)["rows"]
        return list(found)

    def routes(self) -> list[Any]:
        """Return the routes to other machines."""
        return [row for row in self.names("route", "ls") if row["address"] != "LOCAL"]


@pytest.mark.rule("SEC-61", "SEC-62")
@pytest.mark.parametrize("dying", list(ADDRESSES))
def test_pairing_again_mends_what_a_kill_between_its_commits_has_left(
    tmp_path: Path, dying: str
) -> None:
    east, west = (Dying(tmp_path / name) for name in ADDRESSES)
    victim, other = (east, west) if dying == "east" else (west, east)
    victim.is_dying = True
    with victim.serving() as process, other.serving():
        with east.pairing("--share", "urn:east", "--json", "--no-wait") as invited:
            code = line_of(invited)["code"]
        joined = west.pair(code, "--share", "urn:west", "--json")
        assert joined.returncode != 0
        assert process.wait(60) < 0
        victim.is_dying = False
        with victim.serving():
            # the principal is there with its grant, and no route: half of it
            (peer,) = victim.names("peer", "ls")
            assert peer["addresses"]
            assert victim.routes() == other.routes() == []
            with east.pairing("--share", "urn:east", "--json") as invited:
                code = line_of(invited)["code"]
                again = json.loads(west.pair(code, "--share", "urn:west", "--json").stdout)
                ended = line_of(invited)
            for one in (again, ended):
                assert one["problem"] == ""
                assert one["ping"]["is_complete"]
            for one in (east, west):
                assert len(one.names("peer", "ls")) == 1
                assert len(one.routes()) == 1
