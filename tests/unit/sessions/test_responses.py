"""Each request is counted until its response; a response to `begin` may wait for a later one."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import AccessDenied, Busy
from brokerd.protocol import client_frames as frames
from brokerd.protocol.client_readers import AnswerReader
from brokerd.sessions.responses import Responses


class Client:
    """A client that reads at once, and notes the errors of the daemon."""

    def __init__(self, *, most: int = 100) -> None:
        self.failures: list[Exception] = []
        self.broken = False
        self.soon: list[Any] = []
        self.responses = Responses(self, most=most)
        self.responses.soon = self.soon.append
        self.reader = AnswerReader()
        self.got: list[frames.DaemonFrame] = []
        transport: Any = SimpleNamespace(is_closing=lambda: False, write=self._read)
        self.responses.transport = transport

    def _read(self, data: bytes) -> None:
        self.got += self.reader.feed(data)

    def log_failure(self, error: Exception) -> None:
        self.failures.append(error)

    def broke(self, error: Exception) -> None:
        self.failures.append(error)
        self.broken = True

    def audit_refusal(self, error: AccessDenied) -> None:
        self.failures.append(error)

    def turn(self) -> list[frames.DaemonFrame]:
        """Return the frames that one turn of the loop writes."""
        calls = list(self.soon)
        self.soon.clear()
        for call in calls:
            call()
        got, self.got = self.got, []
        return got


def open_tx(*, answers_by_itself: bool) -> Any:
    return SimpleNamespace(answers_by_itself=answers_by_itself)


@pytest.mark.rule("CLP-9")
async def test_requests_done_together_share_a_frame() -> None:
    client = Client()
    client.responses.expect(3)
    client.responses.done(1)
    client.responses.done_all((2, 3))
    assert client.turn() == [frames.Done([1, 2, 3])]
    assert client.responses.outstanding == 0


@pytest.mark.rule("CLP-9")
@pytest.mark.parametrize("later", [True, False])
async def test_done_waits_only_where_a_later_answer_comes_by_itself(later: bool) -> None:
    client = Client()
    responses = client.responses
    responses.expect(1)
    responses.gathers = True
    responses.done_inside(1, open_tx(answers_by_itself=later))
    responses.gathers = False
    responses.settle()
    assert client.turn() == ([] if later else [frames.Done([1])])


@pytest.mark.rule("CLP-30")
async def test_done_does_not_wait_near_the_limit() -> None:
    client = Client(most=4)
    responses = client.responses
    responses.expect(2)
    responses.gathers = True
    responses.done_inside(1, open_tx(answers_by_itself=True))
    responses.gathers = False
    responses.settle()
    assert client.turn() == [frames.Done([1])]


async def test_done_is_written_where_nothing_settles() -> None:
    client = Client()
    client.responses.expect(1)
    client.responses.done_inside(1, open_tx(answers_by_itself=True))
    assert client.turn() == [frames.Done([1])]


async def test_responses_are_written_in_their_order() -> None:
    client = Client()
    client.responses.expect(3)
    client.responses.done(1)
    client.responses.answer(2, "value")
    client.responses.failed(3, Busy("full"))
    done, answer, failed = client.turn()
    assert done == frames.Done([1])
    assert answer == frames.Answer(2, "value")
    assert isinstance(failed, frames.Failed)
    assert client.responses.outstanding == 0


@pytest.mark.rule("CLP-120")
async def test_a_durable_commit_whose_answer_fails_is_answered_unknown() -> None:
    client = Client()
    client.responses.expect(1)
    client.responses.received(1, [[object()]])
    (failed,) = client.turn()
    assert isinstance(failed, frames.Failed)
    assert (failed.request, failed.code) == (1, "outcome_unknown")
    assert len(client.failures) == 1
    assert not client.broken
