"""Mirrored routes: who of two is believed to be principal (RTE-50 to RTE-59)."""

import pytest

from brokerd.ids import BrokerId
from brokerd.routing.mirror import Known, Pair, PairState, Role, Standing, Unresolved, learn
from brokerd.routing.reasons import Reason

P, M = "tcp://p:4022", "tcp://m:4022"
PAIR = Pair(P, M, BrokerId(b"i" * 16))


def principal(epoch: int) -> Standing:
    return Standing(Role.PRINCIPAL, epoch)


MIRROR = Standing(Role.MIRROR, 1)
UNKNOWN = Standing(Role.UNKNOWN)
HEARD = list[tuple[str, Standing | None]]


def after(heard: HEARD) -> Known:
    known = Known(PAIR)
    for address, standing in heard:
        known = learn(known, address, standing)
    return known


@pytest.mark.rule("RTE-51", "RTE-52", "RTE-53", "RTE-54", "RTE-55")
@pytest.mark.parametrize(
    ("heard", "where"),
    [
        ([], Reason.MIRROR_INITIALISING),
        ([(P, MIRROR)], Reason.MIRROR_INITIALISING),
        ([(P, MIRROR), (M, MIRROR)], Reason.MIRROR_ERROR),
        ([(P, UNKNOWN), (M, UNKNOWN)], Reason.MIRROR_ERROR),
        ([(P, None), (M, MIRROR)], Reason.MIRROR_INITIALISING),
        ([(P, principal(3))], P),
        ([(P, MIRROR), (M, principal(3))], M),
        # The principal cannot be reached: nothing is sent until one of the two claims the role.
        ([(P, principal(3)), (P, None)], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (P, None), (M, MIRROR)], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (P, None), (M, UNKNOWN)], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (P, None), (M, MIRROR), (P, principal(3))], P),
        ([(P, principal(3)), (P, None), (M, principal(4))], M),
        ([(P, principal(3)), (P, MIRROR)], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (P, MIRROR), (M, principal(4))], M),
        # Two claim it: the higher epoch has it, whichever was heard first.
        ([(P, principal(3)), (M, principal(4))], M),
        ([(M, principal(4)), (P, principal(3))], M),
        # A principal that is stale is not believed, even when the other one is gone.
        ([(P, principal(3)), (M, principal(4)), (M, None)], Reason.MIRROR_ERROR),
        ([(P, None), (M, principal(4)), (M, None), (P, principal(3))], Reason.MIRROR_ERROR),
        ([(M, principal(4)), (M, None), (P, principal(5))], P),
        # It comes back under a new epoch, and nobody else has had it.
        ([(P, principal(3)), (P, None), (P, principal(4))], P),
        # One epoch, two principals: neither.
        ([(P, principal(3)), (M, principal(3))], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (P, None), (M, principal(3))], Reason.MIRROR_ERROR),
        ([(P, principal(3)), (M, principal(3)), (M, MIRROR)], P),
    ],
)
def test_everything_goes_to_who_is_principal_by_the_highest_epoch(
    heard: HEARD, where: str | Reason
) -> None:
    found = after(heard).where
    assert (found.reason if isinstance(found, Unresolved) else found) == where


@pytest.mark.rule("RTE-57")
@pytest.mark.parametrize(
    ("heard", "state"),
    [
        ([], PairState.NOT_OPERATIONAL),
        ([(P, principal(3))], PairState.PRINCIPAL_ONLY),
        ([(P, principal(3)), (M, MIRROR)], PairState.OPERATIONAL),
        ([(P, principal(3)), (M, MIRROR), (M, None)], PairState.PRINCIPAL_ONLY),
        ([(P, principal(3)), (M, MIRROR), (P, None)], PairState.NOT_OPERATIONAL),
    ],
)
def test_the_state_says_who_answers(heard: HEARD, state: PairState) -> None:
    assert after(heard).state is state


@pytest.mark.rule("RTE-54", "RTE-55")
def test_what_is_known_is_told_in_words() -> None:
    lost = after([(P, principal(3)), (P, None), (M, MIRROR)])
    assert lost.describe() == (
        f"{P} does not answer; {M} says mirror (epoch 1); the last principal was {P} (epoch 3)"
    )
    two = after([(P, principal(3)), (M, principal(3))])
    assert two.disputed
    assert two.describe().endswith("two claim the role at one epoch, so neither has it")
