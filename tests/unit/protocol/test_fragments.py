"""Cutting and joining messages: the cut points follow from the size stored with the message."""

import pytest

from brokerd.protocol import fragments


@pytest.mark.rule("DLP-8", "DLP-10")
@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20, 21, 1000])
def test_the_pieces_are_the_body_and_none_is_too_long(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    count = fragments.count(size, 10)
    pieces = [fragments.piece(body, 10, number) for number in range(count)]
    assert b"".join(pieces) == body
    assert count == max(1, -(-size // 10))
    assert all(len(piece) == 10 for piece in pieces[:-1])
    assert len(pieces[-1]) <= 10
    assert pieces[-1] or not body


@pytest.mark.rule("DLP-8")
def test_a_body_that_fits_is_one_fragment_and_is_not_copied() -> None:
    body = b"x" * 32_768
    assert fragments.count(len(body), 32_768) == 1
    assert fragments.piece(body, 32_768, 0) is body
