"""What the doctor asks for of what may be many: so that nothing hides behind something else."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.admin.doctor.checks import MOST
from brokerd.admin.doctor.gathering import stuck_messages
from brokerd.cli.doctor_observations import SessionSource
from brokerd.cli.main import main
from brokerd.client.session import Session
from brokerd.client.views import ViewPage
from tests.unit.cli.conftest import SmallDaemon


class Pages:
    """A session whose transmission queue has these pages, without an end if `endless`."""

    welcome = SimpleNamespace(broker="main")

    def __init__(self, *pages: list[str], endless: bool = False) -> None:
        self.pages, self.endless, self.asked = pages, endless, 0

    async def view_page(self, _name: str, *, after: str | None, **_options: Any) -> ViewPage:
        at = int(after or 0)
        self.asked += 1
        rows = [{"conversation_handle": one} for one in self.pages[at % len(self.pages)]]
        is_last = not self.endless and at + 1 == len(self.pages)
        return ViewPage(rows, None if is_last else str(at + 1))


def stuck(pages: Pages) -> tuple[list[Any], bool]:
    return asyncio.run(stuck_messages(SessionSource(cast("Session", pages))))


@pytest.mark.rule("MON-22")
def test_many_messages_of_one_dialog_do_not_hide_another() -> None:
    rows, more = stuck(Pages(["one"] * 1000, ["one"] * 500 + ["other"]))
    assert [row["conversation_handle"] for row in rows] == ["one", "other"]
    assert not more


@pytest.mark.rule("MON-22")
def test_a_long_queue_is_read_to_a_limit_and_that_is_told() -> None:
    pages = Pages(["one"] * 1000, endless=True)
    assert (len(stuck(pages)[0]), stuck(pages)[1]) == (1, True)
    pages = Pages([f"d{number}" for number in range(MOST + 1)], ["x"])
    assert (len(stuck(pages)[0]), stuck(pages)[1]) == (MOST + 1, True)
    assert pages.asked == 2


@pytest.mark.rule("MON-22")
def test_parked_groups_are_asked_for_without_those_that_wait(
    daemon: SmallDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.views["brokers"] = [
        {"name": "main", "broker_id": "1", "is_broker_enabled": True, "start_failure": ""}
    ]
    daemon.views["forwarder_counters"] = daemon.views["broker_statistics"] = [{}]
    daemon.status = {"now": 0, "lingering_after": 0.0}
    assert main(["doctor", "--address", daemon.address, "--ignore", "D47", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": [], "next": None}
    asked = dict(daemon.verbs("view"))
    assert asked["parked_groups"]["where"] == {"state": "parked"}
    assert asked["parked_groups"]["limit"] == MOST + 1
    assert "conversation_endpoints" not in asked  # dialogs that linger are not looked for
