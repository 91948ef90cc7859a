"""Figures of the rules that are no settings: other tests reach these limits with smaller ones."""

from datetime import timedelta

import pytest

from brokerd.broker.options import BrokerOptions
from brokerd.clock import HOLD, LEAP, SECOND
from brokerd.delivery.peers import ping
from brokerd.maintenance.slow_commits import STUCK
from brokerd.protocol import client_frames, wire
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.session import UNSENT_LIMIT
from brokerd.storage import body_keeper
from brokerd.storage.options import StoreOptions
from brokerd.storage.readers import READ_LIMIT
from brokerd.storage.rows import bodies, sweeps, tokens
from brokerd.transport.accepting import PAUSE

KIB, MIB = 1024, 1024 * 1024
BROKER, SESSIONS, STORE = BrokerOptions(), SessionOptions(), StoreOptions()


def of(rule: str, name: str, found: object, wanted: object) -> object:
    """A figure, and the rule that has it."""
    return pytest.param(found, wanted, id=f"{rule}: {name}")


@pytest.mark.rule("REL-1", "REL-2", "REL-5", "REL-18", "REL-24", "REL-33", "REL-34", "REL-35")
@pytest.mark.rule("NBT-7", "END-18", "BI-F2", "BI-F4", "BI-R1", "BI-R3", "BI-R5", "BI-R7")
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        of("REL-2", "a client is remembered", tokens.KEPT, 24 * 3600 * SECOND),
        of("REL-5", "a read takes", READ_LIMIT, 5.0),
        of("REL-18", "a client is silent", client_frames.SILENCE_LIMIT, 35.0),
        of("REL-24", "a step of the clock", LEAP, timedelta(hours=1)),
        of("REL-24", "a jump is held", HOLD, timedelta(minutes=10)),
        of("REL-33", "a body in pieces", BROKER.large_body, 256 * KIB),
        of("REL-33", "pieces deleted at once", bodies.SWEEP, 64),
        of("REL-33", "pieces of a flush that is slow", body_keeper._MOST_TOGETHER, 16),
        of("REL-33", "a flush is slow", body_keeper._SLOW, 0.1),
        of("REL-34", "a commit is stuck", STUCK, 30.0),
        of("REL-35", "unread messages of a flush", STORE.unread_at_once, 4096),
        of("REL-35", "a step is long", sweeps._LONG, 0.005),
        of("NBT-7", "questions in a second", ping.MOST_IN_A_SECOND, 50),
        of("NBT-7", "wait for a connection", ping.CONNECT_WAIT, 5.0),
        of("END-18", "accepting pauses", PAUSE, 1.0),
        of("BI-F2", "a frame before the login", wire.LOGIN_LIMIT, 4 * KIB),
        of("BI-F2", "a frame after it", wire.FRAME_LIMIT, MIB),
        of("BI-F4", "a header", wire.HEADER_LIMIT, 16 * KIB),
        of("BI-R1", "a client's frame", client_frames.FRAME_LIMIT, MIB),
        of("BI-R3", "requests outstanding", SESSIONS.outstanding, 1024),
        of("BI-R7", "verbs of a transaction", BROKER.max_verbs, 10_000),
        of("BI-R7", "bytes of a transaction", BROKER.max_bytes, 64 * MIB),
        of("BI-R7", "transactions of a client", SESSIONS.transactions, 16),
        of("BI-R7", "transactions in all", SESSIONS.transactions_in_all, 2000),
        of("BI-R7", "age of a transaction", SESSIONS.transaction_age, 600.0),
        of("BI-R7", "idle in a transaction", SESSIONS.transaction_idle, 60.0),
        of("BI-R7", "receives that wait, of a client", SESSIONS.waiting, 64),
        of("BI-R7", "receives that wait, in all", SESSIONS.waiting_in_all, 5000),
        of("BI-R7", "unsent to a client", UNSENT_LIMIT, 4 * MIB),
        of("BI-R5", "a body", BROKER.max_message, 16 * MIB),
        of("REL-1", "transactions of a flush", STORE.flush_transactions, 4096),
        of("REL-1", "bytes of a flush", STORE.flush_bytes, 16 * MIB),
    ],
)
def test_a_figure_is_that_of_its_rule(found: object, wanted: object) -> None:
    assert found == wanted
