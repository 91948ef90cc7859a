"""A SEND inside a transaction sees the dialog as the transaction has made it."""

from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.errors import InvalidState, WrongDirection
from tests.integration.one_daemon import Daemon
from tests.integration.scenarios import scenario
from tests.integration.test_one_broker import bodies, fails, take, talk


@pytest.mark.rule("SND-4", "SND-5", "DLG-43")
@scenario
async def test_what_is_refused_at_the_other_side_breaks_what_was_sent_with_it(
    daemon: Daemon, session: Session
) -> None:
    there = await talk(session, b"first")
    async with session.transaction() as tx:
        await tx.send(there, b"good", "Ask")
        await tx.send(there, b"not empty", "Nudge")
        await tx.send(there, b"late", "Ask")
    got = await take(session, "desk")
    assert [one.is_error for one in got] == [True]
    assert bodies(await take(session, "shop"))[-2:] == [b"first", b"good"]


@pytest.mark.rule("SND-2", "SND-4")
@scenario
async def test_it_judges_the_dialog_as_the_transaction_has_made_it(
    daemon: Daemon, session: Session
) -> None:
    there = await talk(session, b"first")

    async def then(verb: str, *args: Any) -> None:
        async with session.transaction() as tx:
            await tx.send(there, b"before", "Ask")
            if verb == "end":
                await tx.end(there)
            await tx.send(there, *args)

    await fails(InvalidState, then("end", b"behind", "Ask"))
    await fails(WrongDirection, then("send", b"not mine to send", "Answer"))
    assert bodies(await take(session, "shop")) == [b"first"]
