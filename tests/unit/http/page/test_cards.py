"""The cards of findings: which are one, what they link to, and how they write times."""

import pytest

from brokerd.admin.doctor.codes import CODES
from brokerd.admin.doctor.findings import error
from brokerd.clock import SECOND, Instant
from brokerd.http.page.cards import alike, cards
from brokerd.http.page.words import command
from brokerd.ids import show

NOW = Instant(1_700_000_000 * SECOND)  # 2023-11-14T22:13:20Z
ONE, TWO = show(bytes(range(16))), show(bytes(range(100, 116)))


def held_up(handle: str, seconds: int) -> str:
    found = error(
        "D39",
        f"dialog {handle} to urn:far",
        f"its oldest message waits for {seconds} s: no route; next at 2023-11-14T22:13:28.123456Z",
        "",
        f"brokerd dialog status {handle} --broker main",
    )
    return cards([found], NOW)


@pytest.mark.rule("MON-59")
def test_findings_that_differ_in_ids_and_numbers_are_one_card_with_a_count() -> None:
    parked = "queue orders of broker main"
    found = [
        error("D44", parked, f"group {ONE} is parked, with 1 message: KeyError"),
        error("D44", parked, f"group {TWO} is parked, with 2 messages: KeyError"),
        error("D44", parked, f"group {TWO} is parked, with 22 messages: KeyError"),
        error("D44", parked, f"group {TWO} is parked, with 2 messages: ValueError"),
        error("D44", "queue orders-2 of broker main", f"group {TWO} is parked: KeyError"),
    ]
    assert [len(some) for some in alike(found)] == [3, 1, 1]
    text = cards(found, NOW)
    assert text.count("<li") == 3
    assert "and 2 more findings like it" in text
    assert 'href="/parked?broker=main"' in text


@pytest.mark.rule("MON-59")
def test_a_card_links_to_what_it_names_and_its_code_has_the_meaning() -> None:
    text = held_up(ONE, 400)
    assert f'href="/dialog?broker=main&amp;handle={ONE}"' in text
    assert CODES["D39"].meaning.split(",", maxsplit=1)[0][:20] in text
    assert '<a href="/finding?code=D39"' in text
    found = error("D44", "queue a of broker b of broker main", f"group {ONE} is parked: x")
    text = cards([found], NOW)
    assert 'href="/queue?broker=main&amp;name=a+of+broker+b"' in text
    assert f'href="/group?broker=main&amp;group={ONE}"' in text
    assert 'href="/network"' in cards([error("D40", "destination tcp://h:1", "left alone")], NOW)


@pytest.mark.rule("MON-59", "MON-42")
def test_a_card_has_times_to_the_second_and_short_ids() -> None:
    text = held_up(ONE, 400)
    assert ">22:13:28 (in 8s)<" in text
    assert 'title="2023-11-14T22:13:28.123456Z"' in text
    assert f'title="{ONE}">00010203<' in text


@pytest.mark.rule("MON-59")
@pytest.mark.parametrize(
    ("words", "deletes"),
    [
        ("brokerd queue cure orders --error 1", True),
        (f"brokerd dialog end {ONE} --cleanup --reason x", True),
        ("brokerd broker clean-up main --far-service urn:x", True),
        (f"brokerd group release {ONE}", False),
        ("brokerd queue alter purged status=on", False),
    ],
)
def test_a_command_that_deletes_is_marked(words: str, deletes: bool) -> None:
    assert (">deletes<" in command(words)) is deletes
