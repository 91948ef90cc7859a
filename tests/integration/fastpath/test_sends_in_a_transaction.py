"""A SEND inside a transaction sees the dialog as the transaction has made it."""

from pathlib import Path
from typing import Any

import pytest

from brokerd.broker.changeset import Changeset
from brokerd.broker.transaction import Transaction
from brokerd.client.session import Session
from brokerd.errors import InvalidState, WrongDirection
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, fails, take, talk


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


@pytest.mark.rule("SND-3", "SND-14")
@pytest.mark.parametrize("fast_paths", [True, False])
def test_ordinary_ones_take_the_fast_path_unless_it_is_switched_off(
    fast_paths: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []

    def counted(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def counting(*args: Any) -> bool:
            taken.append(method(*args))
            return taken[-1]

        monkeypatch.setattr(owner, name, counting)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await talk(session, b"first")
        counted(Transaction, "want_ordinary_send")
        counted(Changeset, "hand_over_ordinary")
        async with session.transaction() as tx:
            await tx.send(there, b"second", "Ask")
            await tx.set_timer(there, None)
        async with session.transaction() as tx, tx.savepoint():
            await tx.send(there, b"third", "Ask")
        assert bodies(await take(session, "shop")) == [b"first", b"second", b"third"]
        await session.close()

    play(program, tmp_path, fast_paths=fast_paths)
    assert taken.count(True) == (4 if fast_paths else 0)
