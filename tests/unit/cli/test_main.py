"""The frame of the command line: help, errors as one screen, documented exit statuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.cli import main as frame
from brokerd.cli.main import COMMANDS, main
from brokerd.cli.output import ago, print_json, table
from brokerd.cli.view_commands import took
from brokerd.clock import Instant, is_instant
from brokerd.process.exit_statuses import HELP
from brokerd.resources import config_dir
from brokerd.units import printable

Capture = pytest.CaptureFixture[str]


def test_help_lists_the_commands_and_the_exit_statuses(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("serve", "config", "apply", "status", "send", "receive", "queue", "report"):
        assert f"\n  {name} " in out
    for status in ("64", "65", "69", "73", "74", "78"):
        assert status in out


@pytest.mark.rule("HK-10")
def test_it_does_not_run_without_its_assertions() -> None:
    words = [sys.executable, "-O", "-m", "brokerd", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "relies on its assertions" in done.stderr


@pytest.mark.parametrize(
    ("words", "near"), [(["stauts"], "'status'"), (["queue", "browes"], "'browse'")]
)
def test_a_mistyped_command_names_the_nearest(words: list[str], near: str, capsys: Capture) -> None:
    assert main(words) == 64
    _, _, hint = capsys.readouterr().err.partition("Did you mean ")
    assert near in hint


def test_help_imports_no_command() -> None:
    code = (
        "import sys\nfrom brokerd.cli.main import main\nmain(['--help'])\n"
        "print([m for m in sys.modules if m.startswith(('brokerd.cli.', 'sqlalchemy', 'rich'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ("['brokerd.cli.examples', 'brokerd.cli.main']")


def test_every_command_that_is_there_has_help(capsys: Capture) -> None:
    for name in frame.cli.list_commands(click.Context(frame.cli)):
        assert main([name, "--help"]) == 0
        assert "Usage: brokerd" in capsys.readouterr().out


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brokerd", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("brokerd ")


def test_the_help_of_every_command_ends_with_the_exit_statuses(capsys: Capture) -> None:
    for words in (["status"], ["queue"], ["queue", "alter"], ["report", "run"], ["broker", "ls"]):
        assert main([*words, "--help"]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert out.endswith(" ".join(HELP.split())), words


def test_the_help_of_a_command_shows_examples(capsys: Capture) -> None:
    assert main(["queue", "alter", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:\n    brokerd queue alter orders_q status=off\n" in out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["state"], "state"),
        (["send"], "--from"),
        (["receive", "q", "--max", "0"], "--max"),
        (["config", "sow"], "sow"),
    ],
)
def test_wrong_words_are_told_with_where_to_look(
    words: list[str], what: str, capsys: Capture
) -> None:
    assert main(words) == 64
    err = capsys.readouterr().err
    assert err.startswith("brokerd: ")
    assert what in err
    assert "\n  fix: brokerd" in err


def test_nobody_there_is_one_screen_with_what_to_do(tmp_path: Path, capsys: Capture) -> None:
    assert main(["status", "--address", f"unix:{tmp_path}/none"]) == 69
    err = capsys.readouterr().err
    assert err.startswith(f"brokerd: no daemon answers at unix:{tmp_path}/none")
    assert "fix: start it with: brokerd serve" in err
    assert len(err.splitlines()) == 2


def test_the_daemon_is_found_by_its_settings(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[clients]\nlisten = "unix:here"\n')
    assert main(["status", "-c", str(path)]) == 69
    assert f"unix:{tmp_path}/here" in capsys.readouterr().err


def test_the_daemon_is_found_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    monkeypatch.setenv("BROKERD_ADDRESS", f"unix:{tmp_path}/env")
    assert main(["status"]) == 69
    assert f"unix:{tmp_path}/env" in capsys.readouterr().err


def test_what_nobody_foresaw_is_one_line_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    @click.command()
    def command() -> None:
        raise ZeroDivisionError("by\nnought")

    monkeypatch.setattr(frame.cli, "get_command", lambda *_: command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["status"]) == 70
    first, fix = capsys.readouterr().err.splitlines()
    assert first == "brokerd: unexpected ZeroDivisionError: by nought"
    (file,) = tmp_path.iterdir()
    assert str(file) in fix
    assert "Traceback" in file.read_text()
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "status"])


def test_commands_can_be_added_by_a_row() -> None:
    assert [entry.name for entry in COMMANDS if entry.module == "brokerd.cli.demo"] == ["demo"]
    assert [entry.name for entry in COMMANDS if entry.module == "brokerd.cli.bench"] == ["bench"]


# config.


@pytest.mark.rule("CLP-130")
def test_config_check_warns_of_grants_to_nobody(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[clients]\ngrants = ["control on * to rooot", "send on a to root"]\n')
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: warning: clients.grants: there is no user 'rooot' on this machine; "
        'did you mean "root"?',
        f"{path}: the settings are usable",
    ]


@pytest.mark.rule("SX-21")
def test_config_check_reports_what_is_open_to_other_machines(
    tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(
        '[clients]\nlisten = "TCP://0.0.0.0:0"\ntrust_network = true\n'
        '[endpoint]\nlisten = "all"\nport = 0\nencryption = "disabled"\n'
        'authentication = "none"\n[transport]\nallow_plaintext = true\n'
    )
    assert main(["config", "check", str(path)]) == 0
    clients, peers, *_, usable = capsys.readouterr().out.splitlines()
    warned = f"{path}: warning: open to other machines: "
    assert clients.startswith(f"{warned}clients at TCP://0.0.0.0:0 (clients.trust_network): ")
    assert peers.startswith(f"{warned}peers at TCP://all:0 (transport.allow_plaintext): ")
    assert usable == f"{path}: the settings are usable"


@pytest.mark.rule("SX-24")
def test_config_check_warns_of_files_that_others_may_read(tmp_path: Path, capsys: Capture) -> None:
    path, data_dir = tmp_path / "b.toml", tmp_path / "d"
    path.write_text('[instance]\ndata_dir = "d"\n')
    data_dir.mkdir()
    data_dir.chmod(0o755)
    (data_dir / "reserve").touch()
    (data_dir / "reserve").chmod(0o644)
    assert main(["config", "check", str(path)]) == 0
    reserve, usable = capsys.readouterr().out.splitlines()
    assert reserve.startswith(f"{path}: warning: {data_dir}/reserve has mode 0644: others may ")
    assert usable == f"{path}: the settings are usable"


@pytest.mark.rule("SX-24", "BI-C5")
def test_config_check_refuses_files_that_a_start_would_refuse(
    tmp_path: Path, capsys: Capture
) -> None:
    path, data_dir = tmp_path / "b.toml", tmp_path / "d"
    path.write_text('[instance]\ndata_dir = "d"\n')
    data_dir.mkdir()
    data_dir.chmod(0o775)
    (data_dir / "main.db").symlink_to(path)
    assert main(["config", "check", str(path)]) == 78
    told = capsys.readouterr().err
    assert f"{data_dir} has mode 0775: others may write to it; chmod go-w {data_dir}" in told
    assert f"{data_dir}/main.db is a symbolic link" in told


def test_config_show_says_what_settings_mean_if_it_is_asked_to(capsys: Capture) -> None:
    assert main(["config", "show", "--explain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["meaning"] for row in rows)
    assert main(["config", "show", "--json"]) == 0
    assert "meaning" not in capsys.readouterr().out


def test_config_show_names_every_origin(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[instance]\nname = "x"\n')
    monkeypatch.setenv("BROKERD_CLOCK__TICK", "1s")
    assert main(["config", "show", "-c", str(path), "--json"]) == 0
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["instance.name"]["origin"] == f"{path}:2"
    assert rows["clock.tick"] == {
        "key": "clock.tick",
        "value": '"1s"',
        "origin": "environment BROKERD_CLOCK__TICK",
    }
    assert rows["clock.slow_every"]["origin"] == "default"
    assert main(["config", "show", "-c", str(path)]) == 0
    assert "clock.tick " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["east", "west"])
def test_config_check_accepts_the_examples(name: str, capsys: Capture) -> None:
    assert main(["config", "check", str(config_dir() / f"{name}.toml")]) == 0
    assert capsys.readouterr().out.endswith("the settings are usable\n")


@pytest.mark.rule("BI-C2", "BI-C3")
def test_config_check_tells_the_problems_of_both_files(tmp_path: Path, capsys: Capture) -> None:
    settings, objects = tmp_path / "s.toml", tmp_path / "o.toml"
    settings.write_text("[clok]\n")
    objects.write_text("[[queue]]\nname =\n")
    assert main(["config", "check", str(settings), "--objects", str(objects)]) == 78
    err = capsys.readouterr().err
    assert 'clok: unknown key; did you mean "clock"?' in err
    assert f"{objects}:2:7: not TOML" in err


@pytest.mark.rule("BI-C5")
@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        ("handlers_of_test:good", ""),
        ("handlers_of_test:Kind.good", ""),
        ("handlers_of_test:plain", "not an async callable"),
        ("handlers_of_test:number", "it is int, not an async callable"),
        ("handlers_of_test:none", "has no attribute 'none'"),
        ("handlers_missing:x", "ModuleNotFoundError"),
        ("handlers_broken:x", "ZeroDivisionError"),
    ],
)
def test_config_check_imports_the_handlers(
    handler: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    (tmp_path / "handlers_of_test.py").write_text(
        "async def good(session): ...\ndef plain(session): ...\nnumber = 3\n"
        "class Kind:\n    @staticmethod\n    async def good(session): ...\n"
    )
    (tmp_path / "handlers_broken.py").write_text("1 / 0\n")
    path = tmp_path / "x.objects.toml"
    path.write_text(f'[[queue]]\nname = "q"\n[queue.activation]\nhandler = "{handler}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["config", "check", str(path)]) == (78 if problem else 0)
    assert problem in capsys.readouterr().err


# Words.


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"started_at": 1_700_000_000_000_000}, {"started_at": "2023-11-14T22:13:20.000000Z"}),
        ({"rows": [{"last_start": 0}]}, {"rows": [{"last_start": "1970-01-01T00:00:00.000000Z"}]}),
        ({"since": None, "now": {"name": "q"}}, {"since": None, "now": {"name": "q"}}),
        ({"max_rows": 7, "is_sent_at": True}, {"max_rows": 7, "is_sent_at": True}),
    ],
)
def test_json_has_instants_as_text(value: object, said: object, capsys: Capture) -> None:
    print_json(value)
    assert json.loads(capsys.readouterr().out) == said


def test_every_column_that_is_an_instant_is_told_as_one() -> None:
    """A column whose name says time, and is no instant, stands here."""
    others = {"last_error", "last_failure", "last_duration", "start_failure"}
    others |= {"last_send_tran_id", "last_out_of_order_sequence", "last_out_of_order_frag"}
    columns = {column for view in COLUMNS.values() for column in view}
    timed = {one for one in columns if re.search("since|until|last_|_start$|start_|_timer$", one)}
    assert {one for one in timed - others if not is_instant(one)} == set()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.0, "0 s"), (2.5e-5, "25 us"), (0.0123456, "12.3 ms"), (12.0, "12 s")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert took(seconds, Instant(0)) == text


@pytest.mark.rule("SX-14")
def test_what_is_not_printable_is_written_as_an_escape() -> None:
    assert printable("a\x1b[1m\u202e\n") == "a\\x1b[1m\\u202e\\n"
    assert printable("Ordér ✓") == "Ordér ✓"


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""The characters of Unicode with the property Bidi_Control."""
INVISIBLE = "\x7f\x9b\u00ad\u180e\u200b\u2028\u2029\ufeff\U000e0041"
"""Others that show nothing: DEL, CSI, soft hyphen, separators, zero widths, a tag."""


@pytest.mark.rule("SX-14")
@pytest.mark.parametrize("evil", [*BIDI, *INVISIBLE], ids=lambda one: f"U+{ord(one):04X}")
def test_no_character_turns_or_hides_the_text_of_a_command(evil: str, capsys: Capture) -> None:
    print_json({f"name{evil}": f"é{evil}"})
    as_json = capsys.readouterr().out
    table(f"rows{evil}", [f"na{evil}me"], [[f"a{evil}b"]])
    as_table = capsys.readouterr().out
    assert json.loads(as_json) == {f"name{evil}": f"é{evil}"}
    assert "é" in as_json
    assert evil not in as_json + as_table


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (60, "1min"), (3599, "59min"), (90000, "1d")]
)
def test_how_long_ago(seconds: int, text: str) -> None:
    assert ago(Instant(0), Instant(seconds * 1_000_000)) == text
    assert ago(None, Instant(0)) == "-"


@pytest.mark.rule("SEC-88", "SEC-83")
def test_config_check_says_what_else_is_open(tmp_path: Path, capsys: Capture) -> None:
    path, objects = tmp_path / "b.toml", tmp_path / "o.toml"
    path.write_text(
        '[clients]\nlisten = "TCP://127.0.0.1:0"\ngrants = ["send on urn:news to public"]\n'
    )
    objects.write_text('[broker]\nname = "main"\ndefault_encryption = "off"\n')
    assert main(["config", "check", str(path), "--objects", str(objects)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: warning: open: clients at TCP://127.0.0.1:0 prove nothing" in out
    assert f"{path}: warning: open to everybody: send on urn:news" in out
    assert f"{path}: warning: clients.listen has no Unix socket" in out
    assert f'listen = ["unix:{tmp_path}/data/brokerd.sock", "TCP://127.0.0.1:0"]' in out
    assert f"{objects}: warning: open: dialogs of broker main leave in clear" in out


@pytest.mark.rule("SEC-90")
def test_every_command_that_asks_a_daemon_takes_the_same_options_to_reach_it() -> None:
    def leaves(command: click.Command, *path: str) -> list[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            return [(" ".join(path), command)]
        context = click.Context(command)
        names = command.list_commands(context)
        below = [(name, command.get_command(context, name)) for name in names]
        return [leaf for name, one in below if one for leaf in leaves(one, *path, name)]

    wanted = {"--address", "--config", "--tls-certificate", "--tls-key", "--tls-server"}
    asking = 0
    for name, command in leaves(frame.cli):
        options = {option for one in command.params for option in one.opts}
        if "--address" in options:
            asking += 1
            assert wanted <= options, name
    assert asking > 50
