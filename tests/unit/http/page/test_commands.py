"""Commands that the page offers to paste into a shell."""

from html import unescape
from shlex import quote
from typing import Any

import pytest

from brokerd.clock import Instant
from brokerd.http.page import dialog, network

HOSTILE = "a b; $(rm x) 'c"


@pytest.mark.rule("MON-46")
def test_a_name_in_a_command_is_one_word_of_a_shell() -> None:
    retry = network._retry({"state": "suppressed", "address": HOSTILE})
    keys = (
        "message_sequence_number message_type_name enqueue_time attempts last_attempt_at "
        "next_attempt_at fragments_acked fragments_total transmission_status status_key"
    )
    row: dict[str, Any] = dict.fromkeys(keys.split())
    data = {"waiting": [row], "dialog": {"conversation_handle": "00"}, "broker": HOSTILE}
    waiting = dialog._waiting(data, Instant(0))
    assert f"brokerd destination retry {quote(HOSTILE)}<" in unescape(str(retry))
    assert f"--handle 00 --broker {quote(HOSTILE)}<" in unescape(str(waiting))
