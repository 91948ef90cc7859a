"""`brokerd clock`: following a jump of the machine's clock (REL-24)."""

import json

import pytest

from brokerd.cli.main import main
from tests.unit.cli.conftest import SmallDaemon

Capture = pytest.CaptureFixture[str]
DAYS = 3 * 86_400


@pytest.mark.rule("REL-24", "CLP-133")
@pytest.mark.parametrize(("seconds", "said"), [(DAYS, "3d ahead"), (-DAYS, "3d back")])
def test_confirm_says_how_far_time_was_moved(
    daemon: SmallDaemon, capsys: Capture, seconds: int, said: str
) -> None:
    daemon.answers["confirm_clock"] = {"seconds": seconds}
    assert main(["clock", "confirm", "--address", daemon.address]) == 0
    assert capsys.readouterr().out == f"time was moved {said}\n"
    assert main(["clock", "confirm", "--json", "--address", daemon.address]) == 0
    assert json.loads(capsys.readouterr().out) == {"seconds": seconds}
    assert len(daemon.verbs("confirm_clock")) == 2
