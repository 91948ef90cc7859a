"""Tokens and cookies: each used once, for a time, and never too many."""

import pytest

from brokerd.http import identity
from brokerd.http.identity import MOST_BROWSERS, MOST_TOKENS, MOST_TOKENS_OF_ONE, Browsers
from brokerd.ids import secret_bytes
from brokerd.sessions.principals import Who

ALICE = Who(("1000", "alice"), "alice")
BOB = Who(("1001", "bob"), "bob")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> int:
        return 0

    async def sleep_until(self, deadline: float) -> None:
        self.now = max(self.now, deadline)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def browsers(clock: Clock) -> Browsers:
    return Browsers(clock=clock, random=secret_bytes, lifetime=3600.0)  # type: ignore[arg-type]


@pytest.mark.rule("MON-28")
def test_a_token_lets_one_browser_in_once(browsers: Browsers) -> None:
    token = browsers.issue(ALICE)
    cookie = browsers.let_in(token)
    assert cookie is not None
    found = browsers.find(cookie)
    assert found is not None
    assert found.who == ALICE
    assert browsers.let_in(token) is None


@pytest.mark.rule("MON-28")
def test_a_token_is_valid_for_ten_minutes(browsers: Browsers, clock: Clock) -> None:
    early, late = browsers.issue(ALICE), browsers.issue(ALICE)
    clock.now += 599
    assert browsers.let_in(early) is not None
    clock.now += 1
    assert browsers.let_in(late) is None


@pytest.mark.rule("MON-28")
def test_a_browser_is_let_in_for_the_lifetime_of_the_settings(
    browsers: Browsers, clock: Clock
) -> None:
    cookie = browsers.let_in(browsers.issue(ALICE))
    assert cookie is not None
    clock.now += 3599
    assert browsers.find(cookie) is not None
    clock.now += 1
    assert browsers.find(cookie) is None


@pytest.mark.rule("MON-28")
def test_a_browser_that_leaves_is_let_in_no_more(browsers: Browsers) -> None:
    cookie = browsers.let_in(browsers.issue(ALICE))
    assert cookie is not None
    browsers.leave(cookie)
    assert browsers.find(cookie) is None


@pytest.mark.rule("SX-12", "MON-28")
def test_tokens_of_one_do_not_push_out_those_of_others(browsers: Browsers) -> None:
    of_bob = browsers.issue(BOB)
    first, *others = [browsers.issue(ALICE) for _ in range(MOST_TOKENS_OF_ONE + 1)]
    assert browsers.let_in(first) is None
    assert all(browsers.let_in(one) is not None for one in others)
    assert browsers.let_in(of_bob) is not None


@pytest.mark.rule("SX-12", "MON-28")
def test_tokens_and_browsers_are_bounded(browsers: Browsers) -> None:
    for number in range(MOST_BROWSERS + MOST_TOKENS):
        who = Who((str(number),), str(number))
        browsers.let_in(browsers.issue(who))
        browsers.issue(who)
    assert len(browsers) == MOST_BROWSERS
    assert len(browsers._tokens) == MOST_TOKENS


@pytest.mark.rule("SX-9", "MON-28")
def test_neither_token_nor_cookie_is_kept(browsers: Browsers) -> None:
    token = browsers.issue(ALICE)
    kept = repr(vars(browsers))
    assert token not in kept
    assert repr(bytes.fromhex(token)) not in kept
    cookie = browsers.let_in(token)
    assert cookie is not None
    assert repr(bytes.fromhex(cookie)) not in repr(vars(browsers))


@pytest.mark.rule("MON-28")
@pytest.mark.parametrize("text", ["", "x", "00", "é", "0" * 64, "f" * 10_000])
def test_what_was_never_issued_lets_nobody_in(browsers: Browsers, text: str) -> None:
    browsers.issue(ALICE)
    assert browsers.let_in(text) is None
    assert browsers.find(text) is None


@pytest.mark.rule("SX-26")
def test_what_a_page_sends_along_differs_for_each_browser_and_principal(browsers: Browsers) -> None:
    cookies = [browsers.let_in(browsers.issue(ALICE)) for _ in range(2)]
    found = [browsers.find(one or "") for one in cookies]
    values = {one.csrf for one in found if one is not None}
    values |= {browsers.csrf_of("principal alice"), browsers.csrf_of("principal bob")}
    assert len(values) == 4
    assert identity.TOKEN_LIFETIME == 600
