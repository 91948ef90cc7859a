"""`brokerd import`: its files pass a real daemon's checks, and its handlers run."""

import json
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.model import POST_EVENT_NOTIFICATION
from tests.acceptance.serving import Place

ROOT = Path(brokerd.__file__).parents[1]
DATA = ROOT / "tests" / "data" / "tsql"
SCRIPTS = [str(DATA / "shop.sql"), str(DATA / "procedures.sql")]
TYPE, CONTRACT = "//shop/Order", "//shop/Orders"


@pytest.fixture
def out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "imported"
    assert main(["import", *SCRIPTS, "--out", str(folder)]) == 0
    assert "18 statements of the broker in 2 files" in capsys.readouterr().out
    return folder


@pytest.mark.rule("IMP-17")
def test_the_files_of_an_import(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {
        "imported.objects.toml",
        "packing_queue_handler.py",
        "assessment.md",
    }


@pytest.mark.rule("IMP-17")
def test_nothing_is_overwritten_unless_told_to(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = out / "packing_queue_handler.py"
    handler.write_text("mine")
    (out / "imported.objects.toml").unlink()
    assert main(["import", *SCRIPTS, "--out", str(out)]) == 64
    assert "--force" in capsys.readouterr().err
    assert handler.read_text() == "mine"
    assert not (out / "imported.objects.toml").exists()
    assert main(["import", *SCRIPTS, "--out", str(out), "--force"]) == 0
    assert handler.read_text() != "mine"


@pytest.mark.rule("IMP-17")
def test_without_a_directory_the_assessment_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", *SCRIPTS]) == 0
    assert "21:13  hand    SEND ON CONVERSATION @handle" in capsys.readouterr().out
    assert main(["import", *SCRIPTS, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"] == {"moves": 12, "hand": 6, "none": 0, "unread": 0}
    assert said["rows"][0]["statement"] == "ENABLE_BROKER"
    assert main(["import", *SCRIPTS, "--markdown"]) == 0
    assert "## Needs a hand (6)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("IMP-20")
def test_a_directory_stands_for_its_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(tmp_path)]) == 64
    assert "no script below" in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    for name in ("b/1.SQL", "a.sql", "c.txt"):
        (tmp_path / name).write_text(f"CREATE QUEUE [{name}]")
    assert main(["import", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["ours"] for one in said["rows"]] == ["[[queue]] a.sql", "[[queue]] b/1.SQL"]


@pytest.mark.rule("IMP-7")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_a_script_may_have_the_encodings_of_the_servers_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    script = tmp_path / "a.sql"
    script.write_text("CREATE QUEUE [Aufträge]", encoding=encoding)
    assert main(["import", str(script)]) == 0
    assert "[[queue]] Aufträge" in capsys.readouterr().out


@pytest.mark.rule("IMP-4")
def test_a_script_that_is_too_large_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "a.sql"
    with script.open("wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    assert main(["import", str(script)]) == 64
    assert "larger than 64 MiB" in capsys.readouterr().err


@pytest.mark.rule("IMP-10", "IMP-15")
def test_a_daemon_takes_the_objects_and_runs_the_handlers(out: Path) -> None:
    """A message that is not ported is parked, and answered once its code is there."""
    place = Place(out)  # the daemon looks for handlers in the directory in which it runs
    place.objects.write_text('[broker]\nname = "main"\n')
    checked = place.run("config", "check", "imported.objects.toml")
    assert "the objects are usable" in checked.stdout, checked.stderr
    apply = ("apply", "imported.objects.toml", "--address", place.address)
    with place.serving():
        assert "8 changes would be made" in place.run(*apply, "--dry-run").stdout
        assert "8 changes made" in place.run(*apply).stdout
        assert "no changes needed" in place.run(*apply).stdout
        with brokerd.sync.connect(place.address, broker="main") as session:
            session.create("queue", "watch_q")
            session.create("service", "watch", queue="watch_q", contracts=[POST_EVENT_NOTIFICATION])
            session.create(
                "event_notification",
                "parked",
                queue="PackingQueue",
                events=["GROUP_PARKED"],
                service="watch",
            )
            handle = session.begin_dialog("//shop/Shop", "//shop/Packing", CONTRACT)
            session.send(handle, b"<order/>", TYPE)
            assert session.receive("watch_q", 1, wait=60, autocommit=True)
            (parked,) = session.view("parked_groups")
            assert parked["park_reason"] == f"not ported yet: {TYPE}"
            assert parked["messages"] == 1
    handler = out / "packing_queue_handler.py"
    text = handler.read_text()
    call = 'await ctx.tx.send(ctx.dialog, body, message_type="//shop/Packed")'
    assert f"# line 21: {call}" in text
    handler.write_text(text.replace(f'return brokerd.Park("not ported yet: {TYPE}")', call))
    group = str(parked["conversation_group_id"])
    with place.serving(), brokerd.sync.connect(place.address, broker="main") as session:
        released = place.run("group", "release", group, "--address", place.address)
        assert released.returncode == 0, released.stderr
        (reply,) = session.receive("ShopQueue", 1, wait=60, autocommit=True)
        assert (reply.message_type, reply.body) == ("//shop/Packed", b"<order/>")
