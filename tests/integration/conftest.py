"""Every store that a test closes is whole (HK-10), and no row in it is without its dialog (REL-36).

What is wrong is told when the test is over, so that it does not hide what else has failed. Tests
that damage a store on purpose have the mark `damages_stores`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.storage.postgresql.executor import InlineOnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.store import Store
from brokerd.testing import left
from tests.integration import one_daemon


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--engine=postgresql`, the stores of `one_daemon` are on a server."""
    if request.config.getoption("--engine") != "postgresql":
        return
    if (mark := request.node.get_closest_marker("of_files")) is not None:
        pytest.skip(f"of stores in files: {mark.args[0]}")
    url = request.getfixturevalue("postgresql_url")
    prefixes: dict[Path, str] = {}

    def on_server(folder: Path) -> InlineOnServer:
        prefix = prefixes.setdefault(folder, f"daemon{len(prefixes)}_")
        return InlineOnServer(url, ServerOptions(require_durable=False, schema_prefix=prefix))

    monkeypatch.setattr(one_daemon, "default_executor", on_server)


@pytest.fixture(autouse=True)
def whole_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look through each store as soon as it is closed in order."""
    if request.node.get_closest_marker("damages_stores"):
        yield
        return
    found: list[str] = []
    close = Store.close

    async def close_and_verify(store: Store) -> None:
        is_deleting = store.is_deleting
        await close(store)
        if store.path.exists():
            found.extend(left.in_file(store.path, may_be_over=is_deleting))

    monkeypatch.setattr(Store, "close", close_and_verify)
    yield
    assert found == []
