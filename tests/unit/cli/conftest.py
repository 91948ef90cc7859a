"""A small daemon on a real socket, in a thread, that commands of the command line talk to."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
from msgspec.structs import astuple

from brokerd.cli.permissions import VERBS
from brokerd.errors import BrokerError, ObjectNotFound
from brokerd.protocol import client_frames as frames
from brokerd.protocol.client_frames import Hello, Limits, MessageValue, Request, Welcome
from brokerd.protocol.client_readers import RequestReader

ID = bytes(range(16))


def message(body: bytes | None, **fields: object) -> MessageValue:
    values: dict[str, object] = {
        "handle": b"h" * 16,
        "conversation_id": b"c" * 16,
        "group_id": b"g" * 16,
        "sequence": 0,
        "message_type": "OrderReply",
        "body": body,
        "service": "shop",
        "contract": "orders/v1",
        "queuing_order": 1,
        "priority": 5,
        "enqueued_at": 1_700_000_000_000_000,
        "delivery_count": 0,
        "message_id": b"m" * 16,
        "validation": "N",
    }
    return MessageValue(**(values | fields))  # type: ignore[arg-type]


class SmallDaemon:
    """Keeps one queue and a list of what was committed."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.queue: list[MessageValue] = []
        self.status: dict[str, object] = {}
        self.changes: list[object] = []
        self.objects: list[object] = []
        self.transmission: dict[str, object] = {}
        self.views: dict[str, list[object]] = {}
        self.next: dict[str, str] = {}
        self.answers: dict[str, object] = {}
        self.refuse: BrokerError | None = None
        self.asked: list[tuple[str, list[Any]]] = []
        self.committed: list[Any] = []
        self.broker = ""
        self.brokers: tuple[str, ...] | None = None
        """Those that are there; None = whichever is asked for."""
        self._taken: list[MessageValue] = []
        self._left = threading.Event()

    def wait_until_left(self) -> None:
        """The command does not wait until the daemon has seen it go; whoever looks at it must."""
        assert self._left.wait(10)

    def verbs(self, name: str) -> list[list[Any]]:
        return [args for verb, args in self.asked if verb == name]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._left.clear()
        with contextlib.suppress(ConnectionError):  # it went before it read the last answer
            await self._talk(reader, writer)
        self._back()
        self._left.set()
        writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = RequestReader()
        while data := await reader.read(65536):
            for frame in parser.feed(data):
                if isinstance(frame, Hello):
                    if self.brokers is not None and frame.broker not in self.brokers:
                        hint = f"this instance has: {', '.join(self.brokers)}"
                        unknown = ObjectNotFound(f"there is no broker {frame.broker!r}", hint=hint)
                        writer.write(frames.encode_failed(0, unknown))
                        return
                    self.broker = frame.broker
                    welcome = Welcome(0, 1, "east", ID, ID, frame.broker, ID, Limits(), -1)
                    writer.write(frames.encode_welcome(welcome))
                    parser.login_done()
                elif isinstance(frame, Request):
                    writer.write(self._answer(frame))

    def _answer(self, frame: Request) -> bytes:
        self.asked.append((frame.verb, frame.args))
        if self.refuse is not None:
            return frames.encode_failed(frame.request, self.refuse)
        if frame.verb in self.answers:
            return frames.encode_answer(frame.request, self.answers[frame.verb])
        return self._answer_itself(frame)

    def _answer_itself(self, frame: Request) -> bytes:  # noqa: PLR0911  # a row for each verb
        match frame.verb:
            case "receive":
                count = int(frame.args[1])
                self._taken, self.queue = self.queue[:count], self.queue[count:]
                return frames.encode_messages(frame.request, self._taken)
            case "browse":
                return frames.encode_answer(frame.request, self._page(frame.args[1]))
            case "status":
                return frames.encode_answer(frame.request, self.status)
            case "objects" | "apply" | "create" | "alter" | "drop":
                value = self.objects if frame.verb == "objects" else self.changes
                return frames.encode_answer(frame.request, value)
            case "transmission_status":
                return frames.encode_answer(frame.request, self.transmission)
            case "clean_up":
                return frames.encode_answer(frame.request, None)
            case "view":
                page = {
                    "rows": self.views.get(frame.args[0], []),
                    "next": self.next.get(frame.args[0]),
                }
                return frames.encode_answer(frame.request, page)
            case "transact":
                self.committed += frame.args[1]
            case "commit":
                self._taken = []
            case "rollback":
                self._back()
            case _:
                pass
        return frames.encode_done([frame.request])

    def _page(self, after: list[int] | None) -> list[object]:
        at, count = (after or [0, 0])[1], 2
        rows = [[*astuple(one), 1] for one in self.queue[at : at + count]]
        return [rows, [0, at + count] if at + count < len(self.queue) else None]

    def _back(self) -> None:
        self.queue[:0] = self._taken
        self._taken = []


@pytest.fixture(autouse=True)
def as_nobody_logs() -> Iterator[None]:
    """Commands set the log of their process up; tests that come later find none."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that the test runs, such as `queue create`."""
    invoked: list[str] = []
    invoke = click.Command.invoke

    def noting(command: click.Command, context: click.Context) -> object:
        if not isinstance(command, click.Group):
            invoked.append(context.command_path.removeprefix("brokerd "))
        return invoke(command, context)

    monkeypatch.setattr(click.Command, "invoke", noting)
    return invoked


@pytest.fixture
def daemon(tmp_path: Path, commands: list[str]) -> Iterator[SmallDaemon]:
    path = tmp_path / "s"
    small = SmallDaemon(path)
    ready, over = threading.Event(), threading.Event()

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await asyncio.start_unix_server(small.serve, path)
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        ready.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*others), 5)

    def main() -> None:
        asyncio.run(run())
        over.set()

    stops: list[object] = []
    thread = threading.Thread(target=main)
    thread.start()
    assert ready.wait(10)
    yield small
    stops[0]()  # type: ignore[operator]
    thread.join(10)
    assert over.is_set()
    if commands:
        listed = {verb for command in commands for verb in VERBS[command]}
        asked = {verb for verb, _ in small.asked}
        assert asked <= {*listed, "view"}, "say in cli/permissions.py what these commands ask for"
