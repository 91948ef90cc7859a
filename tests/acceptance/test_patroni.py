"""Patroni promotes the standby, the short variant of `make soak-patroni`."""

from pathlib import Path

import pytest
import uvloop

from tests.kills.patroni import kill_leader, play
from tests.postgresql.installed import NoServer, binaries, owner
from tests.postgresql.patroni import missing


@pytest.fixture
def programs() -> None:
    """Skip where Patroni, etcd or the server is not installed."""
    if absent := missing():
        pytest.skip(f"not installed here: {', '.join(absent)}")
    try:
        binaries()
        owner()
    except NoServer as error:
        pytest.skip(str(error))


@pytest.mark.rule("REL-88", "REL-53", "REL-57")
@pytest.mark.usefixtures("programs")
def test_brokerd_goes_on_at_the_server_that_patroni_promotes(tmp_path: Path) -> None:
    """It goes on before the other server is back, and nothing is lost or doubled."""
    found = uvloop.run(play(tmp_path, seed=1, failovers=1, say=print, faults=(kill_leader,)))
    assert found.problems == []
    assert found.orders > 15
