"""Every store that a test closes is whole (HK-10), and no row in it is without its dialog (REL-36).

What is wrong is told when the test is over, so that it does not hide what else has failed. Tests
that damage a store on purpose have the mark `damages_stores`.
"""

from collections.abc import Iterator

import pytest

from brokerd.storage.store import Store
from tests import stores
from tests.postgresql.engine import engine, pytest_runtest_setup  # noqa: F401 - known here by it


@pytest.fixture(autouse=True)
def whole_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look through each store as soon as it is closed in order, on the server of the run too."""
    if request.node.get_closest_marker("damages_stores"):
        yield
        return
    found: list[str] = []
    close = Store.close

    async def close_and_verify(store: Store) -> None:
        is_deleting = store.is_deleting
        await close(store)
        place = stores.place_of(store.path)
        if place is not None:
            found.extend(stores.problems(place, may_be_over=is_deleting))

    monkeypatch.setattr(Store, "close", close_and_verify)
    yield
    assert found == []
