"""What a verb may not say is refused by the daemon too: not every client has the SDK's checks."""

from typing import Any

import pytest

from brokerd import errors
from brokerd.client.session import Session
from tests.integration.one_daemon import Daemon, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, take, talk

HANDLE = b"n" * 16
GROUP = b"g" * 16


def begin(to: str = "urn:shop", **options: object) -> tuple[Any, ...]:
    return "begin_dialog", (HANDLE, "urn:desk", to, options)


VERBS: dict[str, tuple[Any, type[errors.BrokerError], int | None]] = {
    "lifetime 0": (begin(lifetime=0), errors.InvalidLifetime, 8411),
    "lifetime -1": (begin(lifetime=-1), errors.InvalidLifetime, 8411),
    "lifetime 2^31": (begin(lifetime=2**31), errors.InvalidLifetime, 8411),
    "nobody": (begin(""), errors.InvalidName, None),
    "contract": (begin(contract="none"), errors.ContractNotFound, 8425),
    "two groups": (
        begin(related_conversation=HANDLE, related_group=GROUP),
        errors.InvalidArgument,
        None,
    ),
    "code alone": (("end", ("mine", 7)), errors.ErrorNeedsCodeAndText, 8419),
    "text alone": (("end", ("mine", None, "x")), errors.ErrorNeedsCodeAndText, 8419),
    "code 0": (("end", ("mine", 0, "x")), errors.ErrorNeedsCodeAndText, 8419),
    "a broker's code": (("end", ("mine", -8462, "x")), errors.ErrorNeedsCodeAndText, 8419),
    "long text": (("end", ("mine", 7, "x" * 3001)), errors.InvalidArgument, None),
    "ended twice": (("end", (["mine", "mine"],)), errors.DuplicateHandle, 8451),
    "sent twice": (("send", (["mine", "mine"], "Ask", b"x")), errors.DuplicateHandle, 8451),
    "a type of the broker": (
        ("send", ("mine", "urn:brokerd:Error", b"{}")),
        errors.ReservedMessageType,
        None,
    ),
}


@pytest.mark.rule("DLG-2", "DLG-7", "DLG-10", "DLG-20", "DLG-47", "SND-8", "SDK-18")
@scenario
async def test_the_daemon_looks_for_itself(daemon: Daemon, session: Session) -> None:
    mine = await talk(session, b"1")
    for name, ((verb, (first, *others)), error, number) in VERBS.items():
        named = [mine] * len(first) if isinstance(first, list) else first
        handle = mine if first == "mine" else named
        with pytest.raises(error) as caught:
            await session._link.transact(((verb, (handle, *others)),)).future
        assert (name, type(caught.value)) == (name, error)
        assert (name, caught.value.ssb_code) == (name, number or caught.value.ssb_code)
        assert caught.value.hint, name
    assert await rows(daemon, "conversation_endpoints") == 2
    assert bodies(await take(session, "shop")) == [b"1"]
    for verb in (begin(lifetime=2**31 - 1), ("end", (mine, 1, "x" * 3000))):
        await session._link.transact((verb,)).future
    told, *_ = await take(session, "shop")
    assert told.error is not None
    assert told.error.description == "x" * 3000
