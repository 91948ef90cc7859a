"""What tells one machine from another."""

from pathlib import Path

import pytest

from brokerd.process.host import fingerprint


@pytest.mark.rule("MAN-7")
def test_a_machine_is_known_by_the_id_its_system_has(tmp_path: Path) -> None:
    one, other, none = tmp_path / "one", tmp_path / "other", tmp_path / "none"
    one.write_text("4e0b6e7c4f1d4a6f8b8a6f2f0c1d2e3f\n")
    other.write_text("00000000000000000000000000000001")
    known = fingerprint((none, one))
    assert known is not None
    assert len(known) == 16
    assert fingerprint((one,)) == known
    assert fingerprint((other,)) not in (None, known)


@pytest.mark.rule("MAN-7")
@pytest.mark.parametrize("content", [b"", b"\n", b"uninitialized\n", b"\xff\xfe"])
def test_a_machine_that_does_not_say_is_unknown(content: bytes, tmp_path: Path) -> None:
    place = tmp_path / "id"
    place.write_bytes(content)
    assert fingerprint((place, tmp_path / "none")) is None
