"""When messages that are noted as removed are deleted: behind what somebody waits for."""

from brokerd.storage.removals import NOTHING, SLICE, Removals


def noting(removals: Removals, orders: range) -> None:
    """A flush that somebody waits for removes these messages, and deletes none."""
    removal = removals.take(list(orders), is_awaited=True)
    assert removal.note is not None
    assert not removal.delete
    removals.durable(removal)


def test_a_flush_that_somebody_waits_for_leaves_the_sweep_to_others() -> None:
    removals = Removals(most=1000)
    noting(removals, range(1000, 1800))
    assert removals.begin_sweep() == 800, "as it is done at each tick"
    noting(removals, range(200))
    noting(removals, range(300, 310))
    assert removals.take([], is_awaited=True) == NOTHING
    alone = removals.take([], is_awaited=False)
    assert list(alone.delete) == list(range(1000, 1000 + SLICE))
    assert alone.forget is None
    removals.durable(alone)
    rest = removals.take([], is_awaited=False)
    assert list(rest.delete) == list(range(1000 + SLICE, 1800))
    assert rest.forget == 1, "what was noted since is not deleted yet"
    removals.durable(rest)
    assert removals.noted == {*range(200), *range(300, 310)}
    assert not removals.is_sweeping


def test_all_flushes_delete_once_too_much_is_noted() -> None:
    removals = Removals(most=1000)
    noting(removals, range(1000))
    noting(removals, range(1000, 1990))
    crowded = removals.take(list(range(2000, 3000)), is_awaited=True)
    assert list(crowded.delete) == list(range(1000)), "no more than the sweep began with"
    removals.durable(crowded)
    assert len(removals.noted) == 1990


def test_what_is_noted_stays_bounded_where_nothing_pauses() -> None:
    removals = Removals(most=1000)
    most = 0
    for at in range(0, 100_000, 100):
        removals.durable(removals.take(list(range(at, at + 100)), is_awaited=True))
        most = max(most, len(removals.noted))
    assert most <= 3000
