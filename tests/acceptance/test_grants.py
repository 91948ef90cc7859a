"""Permissions of a real daemon, by the commands: granted, shown, revoked, and kept over a kill."""

import json
import stat
from pathlib import Path

import pytest

from tests.acceptance.serving import Place

TEXT = "receive on main/shop_q to nobody"


def mode(place: Place) -> int:
    return stat.S_IMODE((place.data_dir / "brokerd.sock").stat().st_mode)


@pytest.mark.rule("CLP-130", "CLP-140", "CLP-141", "CLP-142", "SX-3")
def test_a_grant_opens_the_socket_outlives_a_kill_and_is_revoked(tmp_path: Path) -> None:
    place = Place(tmp_path / "here")
    with place.serving():
        assert mode(place) == 0o600
        refused = place.run("grant", "read on main/shop_q to nobody", "--address", place.address)
        assert refused.returncode == 64
        assert "receive on BROKER/QUEUE" in refused.stderr
        assert mode(place) == 0o600
        done = place.run("grant", *TEXT.split(), "--address", place.address)
        assert (done.returncode, done.stdout) == (0, f"granted: {TEXT}\n")
        assert "other users cannot reach the socket" in done.stderr
        assert "set clients.listen to a path elsewhere" in done.stderr
        assert mode(place) == 0o666
    with place.serving():
        assert mode(place) == 0o666
        asked = ("who-can", "receive", "on", "main/shop_q", "--json", "--address", place.address)
        found = json.loads(place.run(*asked).stdout)
        assert [(one["principal"], one["origin"]) for one in found["rows"]] == [
            ("nobody", "online")
        ]
        assert place.run("revoke", TEXT, "--address", place.address).returncode == 0
        again = place.run("revoke", TEXT, "--address", place.address)
        assert again.returncode == 67
        assert "is not granted" in again.stderr
    with place.serving():
        assert mode(place) == 0o600
