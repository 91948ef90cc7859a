"""Memory of large bodies that stays with the process."""

import ctypes

import pytest

from brokerd.process import allocator


@pytest.mark.rule("REL-33")
def test_the_c_library_is_told_where_it_can_be(monkeypatch):
    told: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, what, value):
            told.append((what, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Library())
    assert allocator.keep_freed()
    assert told == [(-1, allocator.KEPT), (-3, 32 << 20)]


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    assert not allocator.keep_freed()
