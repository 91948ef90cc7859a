"""A boxcar that is being filled: what fits into it, and how many bytes its items take (TRN-32)."""

import pytest

from brokerd.delivery.outgoing.boxcar import Boxcar
from brokerd.protocol.frames import encode_item
from tests.frames import fragment


@pytest.mark.rule("TRN-32")
def test_each_item_takes_the_bytes_that_it_has_on_the_wire() -> None:
    item = fragment(body=b"x" * 100)
    boxcar = Boxcar(1000, 3)
    size = boxcar.add(item)
    assert boxcar.encoded == [encode_item(item)]
    assert (size, boxcar.room) == (len(boxcar.encoded[0]), 1000 - size)
    assert boxcar.fits(boxcar.room)
    assert not boxcar.fits(boxcar.room + 1)


@pytest.mark.rule("TRN-32", "TRN-33")
def test_an_item_larger_than_a_boxcar_fits_only_if_it_is_alone() -> None:
    item = fragment(body=b"x" * 2000)
    boxcar = Boxcar(1000, 3)
    assert boxcar.fits(2000)
    boxcar.add(item)
    assert boxcar.is_full
    assert not boxcar.fits(1)
    assert not Boxcar(1000, 3, has_others=True).fits(2000)  # a forwarder has begun it
    assert Boxcar(1000, 3, has_others=True).fits(1000)


@pytest.mark.rule("TRN-32")
def test_a_boxcar_has_no_more_items_than_it_may() -> None:
    boxcar = Boxcar(10_000, 2)
    boxcar.add(fragment())
    assert not boxcar.is_full
    boxcar.add(fragment())
    assert boxcar.is_full


@pytest.mark.rule("RTE-30")
def test_items_that_stay_in_the_instance_are_not_encoded() -> None:
    boxcar = Boxcar(1000, 3, is_for_here=True)
    item = fragment(body=b"x" * 100)
    assert boxcar.add(item) > 100
    assert (boxcar.items, boxcar.encoded) == ([item], [])
