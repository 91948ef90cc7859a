"""When the log is folded, and what its outcome does."""

import sqlite3
from typing import Any

import pytest

from brokerd.errors import StoreFault
from brokerd.storage.checkpoints import Checkpoints
from brokerd.storage.options import Metrics, StoreOptions


class Log:
    """Checkpoints of a store whose writer folds when `fold` is called."""

    def __init__(self) -> None:
        self.folds: list[Any] = []
        self.faults: list[StoreFault] = []
        self.times_full = 0
        self.metrics = Metrics()
        writer: Any = self
        self.checkpoints = Checkpoints(
            writer=writer,
            options=StoreOptions(checkpoint_pages=100, checkpoint_pieces=5000),
            metrics=self.metrics,
            no_room=self.no_room,
            fail=self.faults.append,
        )

    def submit(self, _job: object, reported: Any) -> None:
        self.folds.append(reported)

    def no_room(self) -> None:
        self.times_full += 1

    def fold(self, left: int | None, error: BaseException | None = None) -> None:
        self.folds.pop()(left, error)


@pytest.mark.parametrize("grown", [(99, 0), (0, 4999), (99, 4999)])
def test_a_short_log_is_left_as_it_is(grown: tuple[int, int]) -> None:
    log = Log()
    log.checkpoints.log_has_grown(*grown)
    assert log.folds == []


@pytest.mark.parametrize("grown", [(50, 0), (0, 2500)])
def test_a_log_that_grew_long_in_several_writes_is_folded_once(grown: tuple[int, int]) -> None:
    log = Log()
    for _ in range(3):
        log.checkpoints.log_has_grown(*grown)
    assert len(log.folds) == 1
    log.fold(0)
    assert (log.metrics.checkpoints, log.faults) == (1, [])


def test_pages_that_a_reader_kept_in_the_log_count_for_the_next_fold() -> None:
    log = Log()
    log.checkpoints.log_has_grown(100, 0)
    log.fold(60)
    log.checkpoints.log_has_grown(39, 0)
    assert log.folds == []
    log.checkpoints.log_has_grown(1, 0)
    assert len(log.folds) == 1


@pytest.mark.rule("REL-26")
def test_a_fold_without_room_is_no_fault() -> None:
    log = Log()
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    log.checkpoints.log_has_grown(100, 0)
    log.fold(None, full)
    assert (log.times_full, log.faults, log.metrics.checkpoints) == (1, [], 0)


@pytest.mark.rule("REL-5")
def test_any_other_error_of_a_fold_stops_the_store() -> None:
    log = Log()
    log.checkpoints.log_has_grown(100, 0)
    log.fold(None, sqlite3.OperationalError("disk I/O error"))
    (fault,) = log.faults
    assert "a checkpoint of the store failed" in str(fault)
    assert (log.times_full, log.metrics.checkpoints) == (0, 0)
