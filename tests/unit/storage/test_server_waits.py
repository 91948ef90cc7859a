"""What a session of a server that takes long is said to wait for."""

import pytest

from brokerd.storage.server_facts import wait_of


@pytest.mark.rule("REL-89")
@pytest.mark.parametrize(
    ("kind", "event", "text", "is_hung"),
    [
        ("IPC", "SyncRep", "the server waits for its synchronous standby", False),
        ("Client", "ClientRead", "server process 7 hangs: it does not read what it is sent", True),
        ("Lock", "relation", "server process 7 waits for Lock: relation", False),
        (None, None, "server process 7 computes, or hangs", False),
    ],
)
def test_a_wait_is_named(kind: str | None, event: str | None, text: str, is_hung: bool) -> None:
    found = wait_of(7, kind, event)
    assert (found.text, found.is_hung, found.pid) == (text, is_hung, 7)
    assert found.is_for_standby is (event == "SyncRep")
