"""Which state is rebuilt, which generations go, and what a chain lacks: tables of cases."""

from datetime import UTC, datetime, timedelta

import pytest

from brokerd.storage.backup_chain.manifests import (
    Generation,
    Manifest,
    Piece,
    first_gap,
    name_of_generation,
    newest_until,
    number_of,
    removable,
    states_lost,
)

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def piece(number: int, minute: float, *, previous: str = "", generation: str = "g") -> Piece:
    manifest = Manifest(
        generation=generation,
        number=number,
        began_at=at(minute),
        taken_at=at(minute),
        is_one_moment=True,
        seed=1,
        previous=previous,
        stores=(),
    )
    return Piece(manifest, f"hash of {generation} {number}")


def chain(generation: str, *minutes: float, problem: str = "") -> Generation:
    pieces = [piece(n, minute, generation=generation) for n, minute in enumerate(minutes)]
    return Generation(generation, pieces, problem)


CHAIN = [chain("a", 0, 1, 2), chain("b", 10, 11)]


@pytest.mark.rule("REL-49")
@pytest.mark.parametrize(
    ("minute", "found"),
    [
        (None, ("b", 1)),
        (99, ("b", 1)),
        (11, ("b", 1)),
        (10.5, ("b", 0)),
        (10, ("b", 0)),
        (9, ("a", 2)),
        (0, ("a", 0)),
        (-1, None),
    ],
)
def test_the_newest_state_that_has_nothing_later_is_chosen(
    minute: float | None, found: tuple[str, int] | None
) -> None:
    chosen = newest_until(CHAIN, None if minute is None else at(minute))
    assert (chosen and (chosen[0].name, chosen[1].manifest.number)) == found


@pytest.mark.rule("REL-49")
def test_after_a_clock_that_went_back_the_later_piece_is_the_newer_one() -> None:
    chosen = newest_until([chain("a", 0, 30, 5)], at(10))
    assert chosen is not None
    assert chosen[1].manifest.number == 2


@pytest.mark.rule("REL-48")
@pytest.mark.parametrize(
    ("minute", "lost"),
    [
        (None, None),  # a later generation is whole
        (11, None),
        (2, "a"),  # between the last usable piece and the next generation there may have been more
        (9, "a"),
        (1.5, None),  # the next usable piece is later than what is wanted
    ],
)
def test_what_a_broken_piece_may_hide_is_known(minute: float | None, lost: str | None) -> None:
    broken = [chain("a", 0, 1, 2, problem="3 is missing"), chain("b", 10, 11)]
    wanted = None if minute is None else at(minute)
    chosen = newest_until(broken, wanted)
    assert chosen is not None
    found = states_lost(broken, chosen[1].manifest, wanted)
    assert (found and found.name) == lost


@pytest.mark.rule("REL-48")
def test_a_newest_generation_without_a_usable_piece_hides_newer_states() -> None:
    broken = [chain("a", 0, 1), chain("b", problem="its full copy is missing")]
    chosen = newest_until(broken, None)
    assert chosen is not None
    assert chosen[0].name == "a"
    assert states_lost(broken, chosen[1].manifest, None) == broken[1]


@pytest.mark.rule("REL-48")
@pytest.mark.parametrize(
    ("found", "gap"),
    [
        ([], (0, "")),
        ([piece(0, 0), piece(1, 1, previous="hash of g 0")], (2, "")),
        ([piece(1, 1)], (0, "00000000.json is missing")),
        (
            [piece(0, 0), piece(2, 2, previous="hash of g 1")],
            (1, "00000001.json is missing"),
        ),
        (
            [piece(0, 0), piece(1, 1, previous="another")],
            (1, "00000001.json does not continue the piece before it"),
        ),
    ],
)
def test_a_gap_between_manifests_is_found(found: list[Piece], gap: tuple[int, str]) -> None:
    assert first_gap(found) == gap


@pytest.mark.rule("REL-51")
@pytest.mark.parametrize(
    ("ages", "removed"),
    [
        # Ages in days of the full copies, oldest first; None = it is not whole.
        ([], 0),
        ([30], 0),  # the only one stays, however old
        ([3, 2, 1], 0),
        ([9, 8, 7, 1], 2),  # that of 7 days ago has every state of the last 7 days
        ([9, 8, 6.9], 1),  # for states of 7 days ago that of 8 is needed
        ([9, 8, None, 1], 1),  # a newer one that is not whole replaces nothing
        ([9, None, 6], 0),
        ([None, 8], 1),
        ([9, 8, 7, None], 2),
    ],
)
def test_generations_go_when_a_newer_whole_one_is_old_enough(
    ages: list[float | None], removed: int
) -> None:
    fulls = [(str(n), None if age is None else NOON - age * DAY) for n, age in enumerate(ages)]
    names = [str(n) for n in range(removed)]
    assert removable(fulls, now=NOON, keep=7 * DAY) == names


@pytest.mark.rule("REL-47")
def test_names_of_generations_have_their_number() -> None:
    name = name_of_generation(12, NOON)
    assert name == "g000012-20261127T120000Z"
    assert number_of(name) == 12
    assert [number_of(one) for one in ("g-x", "x000001-y", ".g000001-y.part", "lost+found")] == [
        None
    ] * 4
