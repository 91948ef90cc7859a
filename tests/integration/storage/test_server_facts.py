"""Facts about a server: its version, its synchronous standbys, and whether they may be seen."""

import pytest

from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, in_thread
from brokerd.storage.postgresql.survey import read_facts
from brokerd.storage.server_facts import ServerFacts
from tests.postgresql.servers import USER, Servers, wait


def facts(url: str) -> ServerFacts:
    session = in_thread(connect(url, "main", settings={}, patience=10))
    server = ServerConnection(session, in_thread)
    try:
        return read_facts(server, "postgresql://db/x", ["main"])
    finally:
        server.close()


@pytest.mark.rule("REL-56")
def test_synchronous_standbys_are_named_to_those_who_may_see_them(
    postgresql_servers: Servers,
) -> None:
    server = postgresql_servers.started("primary")
    server.create_database("x")
    found = facts(server.url("x"))
    assert found.redundancy == "one machine: no synchronous standby"
    assert found.sizes == {"main": 0}
    assert found.version.split(".")[0].isdigit()

    standby = postgresql_servers.standby_of(server, "second")
    assert "GRANT pg_read_all_stats" in facts(server.url("x")).redundancy
    server.query(f'GRANT pg_read_all_stats TO "{USER}"')
    assert facts(server.url("x")).redundancy == "synchronous standbys: second"

    standby.stop()
    wait(lambda: not facts(server.url("x")).standbys, "the standby is gone")
    assert "no synchronous standby is connected" in facts(server.url("x")).redundancy
