"""A SHA-256 that is put down and taken up again is the one of the library."""

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerd.demo import running_sha256
from brokerd.demo.running_sha256 import RunningSha256, compress_slowly


@pytest.fixture(params=["fastest", "anywhere"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "anywhere":
        monkeypatch.setattr(running_sha256, "_blocks", compress_slowly)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 127, 128, 1000])
def test_every_way_to_end_a_block(size: int) -> None:
    data = bytes(at % 251 for at in range(size))
    running = RunningSha256()
    running.add(data)
    assert running.hexdigest() == hashlib.sha256(data).hexdigest()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=150), max_size=12))
def test_pieces_with_a_pause_after_each(pieces: list[bytes]) -> None:
    kept = b""
    for piece in pieces:
        running = RunningSha256(kept)
        running.add(piece)
        kept = running.keep()
    assert RunningSha256(kept).hexdigest() == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_asking_for_the_hash_changes_nothing() -> None:
    running = RunningSha256()
    running.add(b"abc")
    before = running.hexdigest()
    assert running.hexdigest() == before
    running.add(b"d")
    assert running.hexdigest() == hashlib.sha256(b"abcd").hexdigest()
