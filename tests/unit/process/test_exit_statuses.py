"""The one table from errors to exit statuses: whole, and the same as in docs/how-to/operate.md."""

import pkgutil
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import brokerd
from brokerd import errors
from brokerd.process.exit_statuses import HELP, ROWS, exit_status

TABLE = Path(__file__).resolve().parents[3] / "docs/how-to/operate.md"


def everything() -> set[type[errors.BrokerError]]:
    """Every error that a module of brokerd defines."""
    for module in pkgutil.walk_packages(brokerd.__path__, "brokerd."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    return set(below(errors.BrokerError))


def below(kind: type[errors.BrokerError]) -> list[type[errors.BrokerError]]:
    return [kind] + [deeper for child in kind.__subclasses__() for deeper in below(child)]


def test_each_error_has_one_row_and_no_row_is_for_nothing() -> None:
    told = Counter(code for row in ROWS for code in row.codes)
    assert [code for code, count in told.items() if count > 1] == []
    assert {kind.code for kind in everything() if kind.__module__.startswith("brokerd")} == set(
        told
    )


def test_the_page_and_the_help_have_the_rows_of_the_table() -> None:
    statuses = [row.status for row in ROWS]
    assert statuses == sorted(set(statuses))
    shown = re.findall(r"^\| (\d+) \| ", TABLE.read_text(), re.MULTILINE)
    assert [int(status) for status in shown] == statuses
    assert all(f" {status} " in HELP for status in statuses)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError, 64),
        (errors.InvalidArgument, 64),
        (errors.InvalidName, 64),
        (errors.ObjectsRefused, 65),
        (errors.InUse, 65),
        (errors.StoreDamaged, 65),
        (errors.ServiceNotFound, 67),
        (errors.QueueNotFound, 67),
        (errors.ConversationNotFound, 67),
        (errors.ObjectNotFound, 67),
        (errors.PortTaken, 69),
        (errors.DaemonUnreachable, 69),
        (errors.ConnectionLost, 69),
        (errors.BrokerUnavailable, 69),
        (errors.TooManyOpenFiles, 69),
        (errors.StoreLocked, 73),
        (errors.StoreFault, 74),
        (errors.LockTimeout, 75),
        (errors.Busy, 75),
        (errors.ConfigError, 78),
        (errors.StoreVersion, 78),
        (errors.QueueDisabled, 1),
        (errors.InvalidState, 1),
    ],
)
def test_the_status_of_the_errors_that_scripts_ask_for(
    error: type[errors.BrokerError], status: int
) -> None:
    assert exit_status(error("x")) == status


def test_the_status_of_what_the_table_does_not_know() -> None:
    newer = errors.BrokerError("x")
    newer.code = "of_a_newer_daemon"  # type: ignore[misc]
    assert exit_status(newer) == 1
    newer.retryable = True  # type: ignore[misc]
    assert exit_status(newer) == 75
    assert exit_status(ZeroDivisionError()) == 70
    assert exit_status(errors.StoreFault("x", exit_status=65)) == 65
