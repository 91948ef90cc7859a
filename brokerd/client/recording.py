"""Recording: the events of one transaction, for the recorder of its session, if there is one.

Reads:  answers.     Calls: the recorder.      Never:  costs anything without a recorder.
"""

import asyncio
from typing import Any, Final

from brokerd.client.messages import Message, read_messages
from brokerd.client.recorder import Recorder, outcome
from brokerd.client.requests import Pending


class Recording:
    """The events of one transaction; each names the client and the transaction."""

    __slots__ = ("_about", "_recorder")

    def __init__(self, recorder: Recorder | None, client_id: bytes, number: int) -> None:
        self._recorder = recorder
        self._about: dict[str, object] = {"client": client_id, "tx": number}

    def event(self, op: str, kind: str = "invoke", **fields: object) -> None:
        """Record one event.

        Raises: nothing.
        """
        if self._recorder is not None:
            self._recorder.event(op=op, kind=kind, **self._about, **fields)

    def sends(
        self,
        handles: bytes | list[bytes],
        message_type: str | None,
        body: bytes | None,
        headers: dict[str, str | bytes] | None,
    ) -> None:
        """Record the request of a send: one event per dialog.

        Raises: nothing.
        """
        if self._recorder is None:
            return
        for each in handles if isinstance(handles, list) else [handles]:
            self.event(
                "send", handle=each, message_type=message_type, body=body, headers=headers or {}
            )

    def ends(self, handles: bytes | list[bytes]) -> None:
        """Record the request of an end: one event per dialog.

        Raises: nothing.
        """
        if self._recorder is None:
            return
        for each in handles if isinstance(handles, list) else [handles]:
            self.event("end", handle=each)

    def received(self, queue: str, messages: list[Message]) -> None:
        """Record the answer to a receive: one event per message, or one event if it is empty.

        Raises: nothing.
        """
        if self._recorder is None:
            return
        for message in messages:
            self.event(
                "receive",
                kind="ok",
                queue=queue,
                group=message.group_id,
                dialog=message.conversation_id,
                handle=message.handle,
                seq=message.sequence,
                message_type=message.message_type,
                body=message.body,
                headers=dict(message.headers),
                timer=message.timer_name,
            )
        if not messages:
            self.event("receive", kind="ok", queue=queue)

    def receives_alone(self, queue: str, asked: "asyncio.Future[object]") -> None:
        """Record a receive that is its own transaction: the request now, the answer when it comes.

        Raises: nothing.
        """
        self.event("receive", queue=queue)

        def answered(done: "asyncio.Future[object]") -> None:
            if not done.cancelled() and done.exception() is None:
                self.received(queue, read_messages(done.result()))
            self.event("commit")
            self._outcome(done, token=-1)

        asked.add_done_callback(answered)

    def watched(self, asked: Pending) -> "asyncio.Future[Any]":
        """Return the future of a commit, after arranging that its outcome is recorded.

        Raises: nothing.
        """
        if self._recorder is not None:
            asked.future.add_done_callback(lambda done: self._outcome(done, asked.token))
        return asked.future

    def _outcome(self, asked: "asyncio.Future[Any]", token: int) -> None:
        error = asyncio.CancelledError() if asked.cancelled() else asked.exception()
        known = {"token": token} if token >= 0 else {}
        self.event("commit", **outcome(error), **known)  # type: ignore[arg-type]  # kind is text


NOT_RECORDED: Final = Recording(None, b"", 0)
"""The recording of every transaction whose session has no recorder."""
