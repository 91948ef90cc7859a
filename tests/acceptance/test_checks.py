"""Bodies that are dear to check, sent to a real daemon: it stays small, answers, and says why."""

from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd.errors import CheckOverrun
from tests.acceptance.serving import OBJECTS, Place
from tests.integration.checking.patterns import (
    ANY_OF,
    GIVES_UP,
    LARGE,
    PATTERN,
    SMALL_AND_DEAR,
)

MIB = 1024 * 1024
TYPES = f"""
[[message_type]]
name = "AnyOf"
validation = "valid_json"
schema = '''{ANY_OF.schema}'''
[[message_type]]
name = "Pattern"
validation = "valid_xml"
schema = '''{PATTERN.schema}'''
[[message_type]]
name = "Json"
validation = "well_formed_json"
[[contract]]"""
ALLOWED = '"Order" = "initiator", "AnyOf" = "any", "Pattern" = "any", "Json" = "any"'


def statistics(session: Any) -> dict[str, Any]:
    (row,) = session.view("broker_statistics")
    return dict(row)


def most_memory(pid: int) -> int:
    """Bytes that a process had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.rule("OBJ-61", "OBJ-62", "REL-32", "BI-R5")
def test_no_body_costs_the_daemon_more_than_its_own_size(tmp_path: Path) -> None:
    place = Place(tmp_path / "p")
    declared = OBJECTS.replace("[[contract]]", TYPES).replace('"Order" = "initiator"', ALLOWED)
    place.objects.write_text(declared)
    with place.serving() as daemon, brokerd.sync.connect(place.address, broker="main") as session:
        refused = session.begin_dialog("shop", "warehouse", "orders")
        session.send(refused, SMALL_AND_DEAR[1], "AnyOf")
        (told,) = session.receive("shop_q", wait=60, autocommit=True)
        assert told.error is not None
        assert (told.error.number, told.handle) == (-9615, refused)
        assert statistics(session)["check_restarts_total"] == 1

        dialog = session.begin_dialog("shop", "warehouse", "orders")
        with pytest.raises(CheckOverrun, match="gave up"):
            session.send(dialog, GIVES_UP[1], "Pattern")
        session.send(dialog, LARGE[1], "Json")
        session.send(dialog, b"<a>ab</a>", "Pattern")
        got: list[Any] = []
        while len(got) < 2:
            got += session.receive("warehouse_q", wait=60, autocommit=True)
        assert [one.message_type for one in got] == ["Json", "Pattern"]
        counts = statistics(session)
        assert (counts["checks_total"], counts["checks_unfit_total"]) == (4, 1)
        assert counts["checks_overrun_by_cause"] == {"gave_up": 1}
        assert daemon.poll() is None
        assert most_memory(daemon.pid) < 512 * MIB
