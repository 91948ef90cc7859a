"""A store that cannot be opened says which one, why, and what to do; never a password."""

import pytest

from brokerd.errors import StoreDamaged, StoreFault
from brokerd.storage.postgresql import opening
from tests.postgresql.fixtures import SHARED

pytestmark = pytest.mark.rule("REL-53")
SECRET = "sw%2Fordfish"


async def refused(daemons, url, *, kind=StoreFault, **given):
    with pytest.raises(kind) as refusal:
        await daemons.open(url, "shop", **given)
    said = f"{refusal.value}\n{refusal.value.hint}"
    assert "ordfish" not in said
    return said


async def test_a_url_that_cannot_be_read(daemons):
    said = await refused(daemons, "postgresql://u:sw/ordfish@host/db")
    assert "% and two digits" in said
    assert "store.url" in said


async def test_nobody_answers(daemons, tmp_path):
    said = await refused(
        daemons, f"postgresql://u:{SECRET}@/db?host={tmp_path}/a,{tmp_path}/b&port=1"
    )
    assert f"{tmp_path}/a port 1: " in said
    assert f"{tmp_path}/b port 1: " in said
    assert "that the server runs" in said


async def test_the_server_has_no_such_database(daemons, postgresql_server):
    said = await refused(daemons, postgresql_server.url("elsewhere"))
    assert 'database "elsewhere" does not exist' in said
    assert "create the database" in said


async def test_the_server_has_too_many_clients(daemons, postgresql_server, postgresql_url):
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    postgresql_server.query(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
    said = await refused(daemons, postgresql_url)
    assert "too many connections" in said
    assert "max_connections" in said


async def test_the_user_may_make_no_schema(daemons, postgresql_server, postgresql_url):
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    postgresql_server.query(f'ALTER DATABASE "{name}" OWNER TO postgres')
    said = await refused(daemons, postgresql_url)
    assert "store shop cannot be opened: permission denied" in said
    assert "the right to create schemas" in said


async def test_the_server_is_read_only(daemons, postgresql_server, postgresql_url):
    name = postgresql_url.partition("@/")[2].partition("?")[0]
    postgresql_server.query(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    said = await refused(daemons, postgresql_url)
    assert "read-only transaction" in said
    assert "default_transaction_read_only" in said


async def test_the_password_is_wrong_and_the_next_server_is_not_reached(
    daemons, postgresql_servers, tmp_path
):
    server = postgresql_servers.new()
    access = server.data / "pg_hba.conf"
    access.write_text("local all brokerd scram-sha-256\nlocal all all trust\n")
    server.start()
    server.query("ALTER ROLE brokerd PASSWORD 'other'")
    url = f"postgresql://brokerd:{SECRET}@/postgres?host={server.folder},{tmp_path}&port=5432"
    said = await refused(daemons, url)
    assert "password authentication failed" in said
    assert "correct the password" in said
    assert f"{tmp_path} port 5432: " in said


async def test_the_server_promises_too_little(daemons, postgresql_server, monkeypatch):
    url = postgresql_server.url(SHARED)
    if not postgresql_server.has_database(SHARED):
        postgresql_server.create_database(SHARED)
    said = await refused(daemons, url, kind=StoreDamaged, require_durable=True)
    assert "fsync" in said
    said = await refused(daemons, url, kind=StoreFault, require_standby=True)
    assert "synchronous_standby_names" in said
    monkeypatch.setattr(opening, "OLDEST", 990000)
    said = await refused(daemons, url, kind=StoreDamaged)
    assert "use a newer server" in said
