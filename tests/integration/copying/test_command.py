"""`brokerd store copy`: its words, and what it says."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from brokerd.cli.main import main
from brokerd.clock import Instant
from brokerd.ids import BrokerId, Incarnation, InstanceId
from brokerd.storage.opening import NewStore, make_file
from tests.integration.copying.conftest import fill


@pytest.mark.rule("REL-61")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the store and the place where it is to go"),
        (("a.db",), "name the store and the place where it is to go"),
        (("a.db", "b.db", "--schema-prefix", "x"), "--schema-prefix goes with --to and --from"),
        (("a.db", "--to", "postgresql://h/d"), "give FROM and TO, or --to, or --from"),
        (("--to", "postgresql://h/d", "--from", "postgresql://h/d"), "give FROM and TO, or"),
        (("--to", "postgresql://h/d?schema=x"), "a schema for each broker"),
        (("--to", "/somewhere/else"), "is not the URL of a PostgreSQL database"),
        (("a.db", "postgresql://h/d#x"), "has a part behind #"),
        (("postgresql://h/d", "b.db"), "the URL names no schema"),
        (("a.db", "a.db"), "is both the source and the target"),
    ],
)
def test_wrong_words_are_named(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKERD_CONFIG", raising=False)
    fill(Path("a.db"))
    assert main(["store", "copy", *words]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.rule("REL-61")
def test_a_store_is_moved_to_a_directory_and_told(tmp_path, capsys):
    source, target = tmp_path / "shop.db", tmp_path / "elsewhere"
    fill(source)
    target.mkdir()
    assert main(["store", "copy", str(source), str(target), "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)
    assert (done["broker"], done["target"]) == ("shop", str(target / "shop.db"))
    assert main(["store", "copy", str(source), str(target)]) == 0
    assert "an earlier run has moved it to" in capsys.readouterr().out
    assert main(["store", "verify", str(source)]) == 65
    assert f"was moved to {target}/shop.db" in capsys.readouterr().err


@pytest.mark.rule("REL-61")
def test_a_store_that_is_not_there_is_named_and_none_is_made(tmp_path, capsys):
    assert main(["store", "copy", str(tmp_path / "a.db"), str(tmp_path / "b.db")]) == 65
    assert "a.db is not there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("REL-62")
def test_a_second_copy_is_told_to_have_delivery_off(tmp_path, capsys):
    source = tmp_path / "shop.db"
    fill(source)
    assert main(["store", "copy", str(source), str(tmp_path / "b.db"), "--keep-source"]) == 0
    told = capsys.readouterr()
    assert "copied to" in told.out
    assert "delivery is off in the copy" in told.err
    assert main(["store", "verify", str(source)]) == 0


@pytest.mark.rule("REL-60", "REL-61", "REL-83")
def test_a_mirrored_broker_is_left_out_both_ways(tmp_path, capsys, postgresql_servers):
    server = postgresql_servers.started(fsync=True)
    server.create_database("stores")
    url = server.url("stores")

    def settings(name):
        folder = tmp_path / name
        (folder / "d").mkdir(parents=True, mode=0o700)
        file = folder / "brokerd.toml"
        file.write_text(
            f'[instance]\nname = "x"\ndata_dir = "{folder}/d"\n'
            f'[mirroring]\ndirectory = "{tmp_path}/shared"\nbrokers = ["shared"]\n'
        )
        return str(file)

    (tmp_path / "shared").mkdir(mode=0o700)
    there, back = settings("there"), settings("back")
    msdb = tmp_path / "there" / "d" / "msdb.db"
    new = NewStore("msdb", BrokerId(b"b" * 16), InstanceId(b"i" * 16))
    make_file(msdb, new, incarnation=Incarnation(b"n" * 16), now=Instant(1))
    with closing(sqlite3.connect(msdb)) as connection, connection:
        # as a daemon does when it opens the store of a mirrored broker
        connection.execute(
            "INSERT INTO known_brokers (name, broker_id) VALUES ('shared', ?)", (b"s" * 16,)
        )
        connection.execute(
            "INSERT INTO known_brokers (name, broker_id) VALUES ('shop', ?)", (b"o" * 16,)
        )
    fill(msdb.with_name("shop.db"))
    noted = [tmp_path / name / "d" / "server-history" for name in ("there", "back")]
    for file in noted:
        file.write_text("of the server that had the stores before")
    for words in ((there, "--to"), (back, "--from")):
        file, direction = words
        assert main(["store", "copy", "-c", file, direction, url]) == 0
        # A daemon there would take it for a broker whose store is missing (MAN-17).
        known = server.query("SELECT name FROM msdb.known_brokers", database="stores")
        assert known == [("shop",)]
        assert "left out, as a partner shares them: shared" in capsys.readouterr().err
    assert (tmp_path / "back" / "d" / "msdb.db").exists()
    assert not any(file.exists() for file in noted)
    assert not list((tmp_path / "shared").iterdir())
