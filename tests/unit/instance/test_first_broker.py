"""The broker that a daemon makes where there is none (SDK-15)."""

from pathlib import Path

import pytest

from brokerd.config.settings import Instance, Settings
from brokerd.instance.preflight import first_broker
from brokerd.objects.declared import Declared


@pytest.mark.rule("SDK-15")
def test_main_is_made_where_no_store_is_and_only_there(tmp_path: Path) -> None:
    settings = Settings(instance=Instance(name="one", data_dir=tmp_path))
    made = first_broker(settings)
    assert made is not None
    assert made == Declared()
    assert [one.broker for one in made.brokers] == ["main"]
    (tmp_path / "brokerd.sock").touch()
    assert first_broker(settings) == made
    (tmp_path / "east.db").touch()
    assert first_broker(settings) is None
