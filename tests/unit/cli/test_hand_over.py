"""`brokerd broker hand-over`: what is said when no other daemon takes the stores over (REL-58)."""

import pytest

from brokerd.cli.main import main
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
COMMAND = ("broker", "hand-over", "--wait", "200ms", "--address")


@pytest.mark.rule("REL-58", "CLP-174")
def test_a_daemon_that_goes_on_by_itself_is_told(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["hand_over"] = {"waiting": ["192.0.2.12"]}
    assert main([*COMMAND, daemon.address]) == 75
    said = capsys.readouterr().err
    assert "handing over to a daemon on 192.0.2.12" in said
    assert "no other daemon let clients in within 0.2 s" in said


@pytest.mark.rule("REL-58")
def test_the_address_that_answers_is_asked(daemon: SmallDaemon, capsys: Capture) -> None:
    daemon.answers["hand_over"] = {"waiting": ["192.0.2.12"]}
    assert main([*COMMAND, f"{daemon.address}-gone,{daemon.address}"]) == 75
    assert len(daemon.verbs("hand_over")) == 1
    assert "no other daemon let clients in" in capsys.readouterr().err


@pytest.mark.rule("REL-58")
def test_without_a_daemon_nothing_is_handed_over(daemon: SmallDaemon, capsys: Capture) -> None:
    assert main([*COMMAND, f"{daemon.address}-gone"]) == 69
    assert "no daemon" in capsys.readouterr().err
