"""Work that would take longer than is waited for is refused before any is done."""

import pytest

from brokerd.bench.activation import ActivationOptions, refuse_too_much
from brokerd.errors import UsageError


def test_the_usual_work_and_much_of_it_is_done() -> None:
    refuse_too_much(ActivationOptions())
    refuse_too_much(ActivationOptions(groups=8, messages=300, work=1.0))


@pytest.mark.parametrize(
    "options",
    [
        ActivationOptions(groups=1, messages=1, work=1000.0),
        ActivationOptions(groups=9, messages=300, work=1.0),
        ActivationOptions(groups=2, messages=300, work=0.6, max_readers=1),
    ],
)
def test_work_that_would_not_be_done_in_time_is_refused(options: ActivationOptions) -> None:
    with pytest.raises(UsageError, match="it may be 300 s"):
        refuse_too_much(options)
