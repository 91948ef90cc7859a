"""What an activator does with a notification, without brokers and programs."""

from pathlib import Path

import orjson
import pytest

from brokerd.activator.activator import Activator
from brokerd.activator.config import for_one_queue
from brokerd.clock import SystemClock
from brokerd.telemetry.log import NullLog


class Recorded(NullLog):
    """A log that is looked at."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})

    warning = info


@pytest.mark.rule("ACT-47")
@pytest.mark.parametrize(
    ("body", "queue"),
    [
        (orjson.dumps({"instance": "a", "broker": "main", "queue": "other"}), "a/main/other"),
        (b"{}", "what cannot be read"),
        (b"[]", "what cannot be read"),
        (b"\xff", "what cannot be read"),
        (b"", "what cannot be read"),
    ],
)
def test_what_nobody_here_is_for_is_logged_counted_and_consumed(
    tmp_path: Path, body: bytes, queue: str
) -> None:
    log = Recorded()
    config = for_one_queue("q", ["x"], address="", broker="main", state_dir=tmp_path, most=1)
    activator = Activator(config, clock=SystemClock(), log=log)
    activator.process("ops", body)
    assert activator.counts["unknown_queue"] == 1
    (line,) = log.lines
    assert line["event"] == "broker.activator"
    assert (line["subclass"], line["service"], line["queue"]) == ("unknown_queue", "ops", queue)
