"""Tokens: how many are outstanding at once, and what the client may not forget."""

import pytest

from brokerd.client.tokens import NONE, Tokens
from brokerd.protocol.client_frames import OUTSTANDING


def drawn(tokens: Tokens, count: int) -> list[int]:
    return [tokens.draw() for _ in range(count)]


@pytest.mark.rule("CLP-52")
def test_as_many_are_outstanding_as_the_broker_remembers_less_the_reserved_ones() -> None:
    tokens = Tokens()
    drawn(tokens, OUTSTANDING - 11)
    assert tokens.may_draw(10)
    tokens.draw()
    assert not tokens.may_draw(10)
    assert tokens.may_draw(9)


@pytest.mark.rule("CLP-52")
def test_the_oldest_outstanding_token_alone_holds_up_the_others() -> None:
    tokens = Tokens()
    first, *later = drawn(tokens, OUTSTANDING)
    for token in later:
        tokens.confirm(token)
    assert not tokens.may_draw(0)
    tokens.discard(first)
    assert tokens.may_draw(0)


@pytest.mark.rule("CLP-55")
def test_the_highest_confirmed_token_never_falls_by_an_older_one() -> None:
    tokens = Tokens()
    assert tokens.highest_confirmed == NONE
    first, second, third = drawn(tokens, 3)
    tokens.confirm(second)
    tokens.confirm(first)
    tokens.discard(third)
    assert tokens.highest_confirmed == second
    assert tokens.are_settled


@pytest.mark.rule("CLP-55")
@pytest.mark.parametrize(("highest", "following"), [(NONE, 3), (1, 3), (40, 41)])
def test_after_a_change_of_the_store_no_number_is_drawn_again(highest: int, following: int) -> None:
    tokens = Tokens()
    drawn(tokens, 3)
    tokens.continue_from(highest)
    assert tokens.are_settled
    assert tokens.highest_confirmed == highest
    assert tokens.draw() == following
