"""The window of one queue: its messages that are in memory, with their number and size (design D4).

Reads:  the clock.      Calls: nothing.
Never:  chooses a group, or knows locks, waiters or the backlog.

`count` and `size` always are those of the messages in `Live.ready` of the queue's conversations.
Each conversation has its messages in the order of RECEIVE (RCV-8), and its group lists it as ready
as long as it has some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

import msgspec

from brokerd.broker.backlog import Found
from brokerd.broker.messages import QueuedMessage, size_of
from brokerd.broker.state import (
    Group,
    HomeQueue,
    Live,
    Taken,
)
from brokerd.clock import Instant

MESSAGE_COST = 400
"""Bytes of memory that a message in the window costs in addition to its body."""


class WindowOptions(msgspec.Struct, frozen=True):
    """Limits on the part of a queue that is held in memory."""

    window_messages: int = 50_000
    window_bytes: int = 32 * 1024 * 1024
    page_messages: int = 2_000
    """Messages loaded at a time."""
    page_bytes: int = 4 * 1024 * 1024
    locked_factor: int = 4
    """Multiple of the window's limits at which receives stop looking past locked groups."""


class Window:
    """The messages of one queue in memory."""

    __slots__ = ("_utc", "count", "options", "size")

    def __init__(self, options: WindowOptions, utc: Callable[[], Instant]) -> None:
        self.options = options
        self._utc = utc
        self.count = 0
        """Number of messages."""
        self.size = 0
        """Bytes of memory that the messages cost."""

    # Room. Whether a new message may enter is `QueueState.must_page`.

    @property
    def has_room_for_page(self) -> bool:
        """Whether the next page fits.

        A page is loaded as soon as it fits: its messages lie together in the file, so that loading
        them costs a third of loading as many messages of one group, which lie scattered."""
        options = self.options
        return (
            self.count + options.page_messages <= options.window_messages
            and self.size + options.page_bytes <= options.window_bytes
        )

    @property
    def is_crowded(self) -> bool:
        """Whether the window is full, so that arrivals go to the backlog."""
        options = self.options
        return self.count >= options.window_messages or self.size >= options.window_bytes

    def is_full(self, home: HomeQueue) -> bool:
        """Return whether locked groups fill so much memory that nothing more is loaded.

        Groups that `home` has set aside do not count: they may never be released, and the messages
        behind them would never be received."""
        options, most = self.options, self.options.locked_factor
        count, size = self.count, self.size
        if count < most * options.window_messages and size < most * options.window_bytes:
            return False
        for group in home.aside:
            if group.held is not None and group.queue is home:
                for live in group.ready.values():
                    count -= len(live.ready)
                    size -= len(live.ready) * MESSAGE_COST + size_of(live.ready)
        return count >= most * options.window_messages or size >= most * options.window_bytes

    # Messages come in.

    def add(self, live: Live, message: QueuedMessage) -> None:
        """Add a committed message; the caller offers its group afterwards."""
        ready = live.ready
        if not ready:
            live.group.has_ready(live)
            ready.append(message)
        elif message.sequence < 0:
            _insert(ready, (message,))
        else:
            ready.append(message)
        self.count += 1
        self.size += MESSAGE_COST + len(message.body or b"")

    def enter(self, found: Found, *, is_expected: bool) -> Iterable[Group]:
        """Add messages of conversations that were loaded, each conversation's in their order.

        Return the groups to offer, those with the oldest messages first. A receivable group that
        had messages in the window keeps its place, because those added behind them are younger. It
        gets a new place if its first message is a DialogTimer or an Error, which is first whatever
        its age (RCV-9), or if a receive waits (`is_expected`)."""
        firsts: dict[Group, int] = {}
        count = size = 0
        for live, rows in found:
            messages = QueuedMessage.from_rows(rows)
            ready, group = live.ready, live.group
            has_place = bool(ready) and ready[0].sequence >= 0
            if not ready:
                group.has_ready(live)
            if min([one.sequence for one in messages]) < 0:
                _insert(ready, messages)
                has_place = False
            else:
                ready.extend(messages)
            if is_expected or not has_place:
                order = messages[0].order
                firsts[group] = min(order, firsts.get(group, order))
            count += len(messages)
            size += size_of(messages)
        self.count += count
        self.size += count * MESSAGE_COST + size
        return sorted(firsts, key=firsts.__getitem__)

    def put_back(self, live: Live, messages: Sequence[QueuedMessage]) -> None:
        """Return messages of a rolled back receive to their places (RCV-15)."""
        if not messages:
            return
        ready = live.ready
        if ready and ready[0].sequence < messages[-1].sequence:  # a timer or Error came meanwhile
            _insert(ready, messages)
        else:
            ready.extendleft(reversed(messages))
        live.group.has_ready(live)
        for message in messages:
            message.deliveries += 1
            self.size += MESSAGE_COST + len(message.body or b"")
        self.count += len(messages)

    # Messages go out.

    def dequeue(
        self,
        group: Group,
        limit: int,
        max_bytes: int,
        *,
        only: Live | None = None,
        but: Collection[Live] = (),
    ) -> tuple[list[Taken], int]:
        """Remove up to `limit` messages, at least one, of a locked group, in order (RCV-7).

        Return them with their number. The first message is taken however large it is. `only`: take
        from this conversation alone (RCV-5). `but`: skip these conversations."""
        taken: list[Taken] = []
        now = self._utc()
        lives = group.with_messages(but, only) if but or only else list(group.ready.values())
        if len(lives) > 1:
            lives.sort(key=lambda one: (-one.endpoint.priority, one.ready[0].order))
        count = size = 0
        for live in lives:
            ready = live.ready
            here = len(ready)
            if here == 1:
                message = ready[0]
                messages, its_size = [message], len(message.body or b"")
            else:
                messages = list(islice(ready, limit))
                its_size = size_of(messages)
            # A message that does not fit ends the receive (limit 0), as none may overtake it.
            if its_size > max_bytes:
                messages, limit = _fitting(messages, max_bytes, least=0 if taken else 1), 0
                its_size = size_of(messages)
            its_count = len(messages)
            if messages:
                taken.append(Taken(live, messages, its_size, now))
                count += its_count
                size += its_size
            if its_count < here:
                for _ in messages:
                    ready.popleft()
                break
            ready.clear()
            del group.ready[live.endpoint.key]
            limit -= its_count
            max_bytes -= its_size
            if limit <= 0:
                break
        self.count -= count
        self.size -= count * MESSAGE_COST + size
        return taken, count

    def drop(self, live: Live) -> list[QueuedMessage]:
        """Drop an endpoint's messages; return them."""
        dropped = list(live.ready)
        live.ready.clear()
        live.group.ready.pop(live.endpoint.key, None)
        self.count -= len(dropped)
        self.size -= len(dropped) * MESSAGE_COST + size_of(dropped)
        return dropped


def _fitting(messages: list[QueuedMessage], room: int, *, least: int) -> list[QueuedMessage]:
    """Return the messages up to the first that exceeds the room, but at least `least`."""
    for at, message in enumerate(messages):
        room -= len(message.body or b"")
        if room < 0 and at >= least:
            return messages[:at]
    return messages


def _insert(ready: deque[QueuedMessage], messages: Iterable[QueuedMessage]) -> None:
    """Put messages at their places by sequence: DialogTimer, then Error, then the rest (RCV-9)."""
    ordered = sorted([*ready, *messages], key=lambda one: (one.sequence, one.order))
    ready.clear()
    ready.extend(ordered)
