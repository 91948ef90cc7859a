"""Delays as functions of the attempt number."""

from datetime import timedelta

import pytest

from brokerd.protocol.backoff import SuppressMode, retransmit_delay, suppression_after_failure


@pytest.mark.rule("DLP-26")
@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(0, 4), (1, 8), (2, 16), (3, 32), (4, 64), (5, 64), (9, 64), (10**9, 64)],
)
def test_retransmission_delay_doubles_up_to_the_cap(attempts: int, seconds: int) -> None:
    assert retransmit_delay(attempts) == timedelta(seconds=seconds)


@pytest.mark.rule("DLP-26")
def test_retransmission_delay_follows_its_settings() -> None:
    short = [
        retransmit_delay(n, first=timedelta(seconds=1), most=timedelta(seconds=3)) for n in range(4)
    ]
    assert short == [timedelta(seconds=s) for s in (1, 2, 3, 3)]


@pytest.mark.rule("TRN-16")
@pytest.mark.parametrize("failures", [1, 2, 7, 1000])
def test_suppression_after_failures_does_not_grow(failures: int) -> None:
    assert suppression_after_failure(failures) == timedelta(seconds=60)


@pytest.mark.rule("NBT-9")
@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (500, 60)]
)
def test_growing_suppression_is_an_option(failures: int, seconds: int) -> None:
    delay = suppression_after_failure(failures, mode=SuppressMode.BACKOFF)
    assert delay == timedelta(seconds=seconds)
