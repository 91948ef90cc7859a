"""The line of the program in the error of a verb that failed later, and hints in tracebacks."""

import asyncio
import traceback
from typing import cast

import pytest

from brokerd.client.call_sites import MOST, Site, call_site, note
from brokerd.client.exchange import Exchange
from brokerd.client.failures import rebuild
from brokerd.client.link import Link, _over
from brokerd.client.recording import NOT_RECORDED
from brokerd.errors import BrokerError, QueueDisabled, RemoteError, ServiceNotFound
from brokerd.protocol.client_frames import Failed


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.rule("SDK-25")
def test_the_nearest_caller_outside_the_sdk_is_named() -> None:
    def verb() -> Site:  # stands for a method of the SDK
        return call_site("send", depth=2)

    site = verb()
    assert site.code is not None
    assert str(site).startswith(f"send at {__file__}:")
    assert str(site).endswith("test_the_nearest_caller_outside_the_sdk_is_named")


@pytest.mark.rule("SDK-25")
async def test_the_event_loop_is_no_caller() -> None:
    found: list[Site] = []

    def verb() -> None:
        found.append(call_site("send", depth=2))

    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(verb)
    loop.call_soon(done.set_result, None)
    await done
    assert [str(one) for one in found] == ["send"]


@pytest.mark.rule("SDK-25")
async def test_what_a_handler_returned_is_sent_on_its_behalf() -> None:
    async def handler() -> None: ...

    exchange = Exchange(cast("Link", None), NOT_RECORDED)
    exchange.on_behalf_of = handler.__code__
    loop = asyncio.get_running_loop()
    asked = loop.create_future()
    loop.call_soon(exchange.collect, "send", (), 0)  # no program is on the stack
    loop.call_soon(asked.set_result, None)
    await asked
    error = BrokerError("why")
    exchange.explain(error)
    assert f"{__file__}:{handler.__code__.co_firstlineno}, in " in printed(error)


@pytest.mark.rule("SDK-25")
def test_one_verb_is_named_as_it_is_and_of_many_some() -> None:
    here = test_one_verb_is_named_as_it_is_and_of_many_some.__code__
    known, unknown = Site("send", here, 7), Site("end", None, 0)
    assert note([unknown]) == note([]) == ""
    assert note([unknown, known]).startswith("the failed verb: send at ")
    assert note([known] * 2).startswith("one of the verbs failed: send at ")
    assert note([known] * (MOST + 3)).endswith("; and 3 more")


@pytest.mark.rule("SDK-26")
@pytest.mark.parametrize(
    "error",
    [
        ServiceNotFound("there is no service x"),
        BrokerError("why", hint="do this"),
        RemoteError(-8408, "no"),
        rebuild(Failed(1, "queue_disabled", "it is off", "switch it on", False, None)),
        _over(QueueDisabled("it is off")),
    ],
)
def test_a_traceback_shows_the_hint_once(error: BrokerError) -> None:
    assert error.hint
    text = printed(error)
    assert text.count(f"fix: {error.hint}") == 1
    assert text.count("fix: ") == 1
    error.advise("something better")
    assert "fix: something better" in printed(error)
    assert printed(error).count("fix: ") == 1


@pytest.mark.rule("SDK-26")
def test_an_error_without_a_hint_has_no_note_and_a_copy_leaves_the_original_alone() -> None:
    assert not hasattr(BrokerError("why"), "__notes__")
    original = QueueDisabled("it is off")
    _over(original)
    assert f"fix: {original.hint}" in printed(original)
