"""What errors say is to be done about them."""

import pytest

from brokerd.errors import RemoteError


@pytest.mark.rule("ERR-1", "DLP-41")
def test_a_service_that_the_broker_lacks_is_first_to_be_made_there() -> None:
    """Nobody has to have named a broker: a route may lead to the wrong one."""
    error = RemoteError(-8490, "service 'shop' is not in this broker")
    assert error.hint.startswith("create the service there")
    assert "leave broker_id out" not in error.hint
