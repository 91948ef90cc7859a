"""Room: the limits of one queue, and the messages that are on their way into it (REL-42).

Reads, calls: nothing.
Never:  counts what is in the queue, which counts that itself; never refuses: the verbs and the
        arrivals do, and count it here.
"""

from brokerd.clock import Instant


class Room:
    """The limits of a queue, with what counts against them but is not in the queue yet.

    A queue takes messages until a limit is reached: so one body more than `max_bytes` may lie in
    it, but no message is too large for it, and small ones never keep a large one out."""

    __slots__ = (
        "_coming",
        "_coming_bytes",
        "_reserved",
        "_reserved_bytes",
        "max_bytes",
        "max_messages",
        "owes_resume",
        "refused",
        "refused_at",
    )

    def __init__(self, max_messages: int | None, max_bytes: int | None) -> None:
        self.max_messages = max_messages
        """Number of messages at which it takes no more; None = no limit."""
        self.max_bytes = max_bytes
        """Bytes of bodies at which it takes no more; None = no limit."""
        self._coming = self._coming_bytes = 0  # their commit is under way
        self._reserved = self._reserved_bytes = 0  # sent in transactions that are still open
        self.refused = 0
        """Number of sends and arrivals refused since the start, or since the queue had a limit."""
        self.refused_at: Instant | None = None
        """Instant of the last refusal."""
        self.owes_resume = False
        """Whether senders elsewhere have been refused, and are to hear when there is room."""

    def set_limits(self, max_messages: int | None, max_bytes: int | None) -> None:
        """Use changed limits; what the queue has beyond them stays."""
        self.max_messages, self.max_bytes = max_messages, max_bytes

    def is_full(self, messages: int, size: int) -> bool:
        """Return whether a limit is reached with this content of the queue."""
        most, most_bytes = self.max_messages, self.max_bytes
        if most is not None and messages + self._coming + self._reserved >= most:
            return True
        if most_bytes is None:
            return False
        return size + self._coming_bytes + self._reserved_bytes >= most_bytes

    def is_half_empty(self, messages: int, size: int) -> bool:
        """Return whether the queue is down to half of its limits."""
        most, most_bytes = self.max_messages, self.max_bytes
        if most is not None and 2 * messages > most:
            return False
        return most_bytes is None or 2 * size <= most_bytes

    # Each named after what has happened.

    def joining(self, size: int) -> None:
        """Note a message whose commit is under way from now on."""
        self._coming += 1
        self._coming_bytes += size

    def arrived(self, size: int) -> None:
        """Note that the commit of such a message is over: the queue counts it now, or it is gone.

        A message whose commit began before the queue had limits was not counted here."""
        self._coming = max(0, self._coming - 1)
        self._coming_bytes = max(0, self._coming_bytes - size) if self._coming else 0

    def reserve(self, size: int) -> None:
        """Note a message that an open transaction has sent."""
        self._reserved += 1
        self._reserved_bytes += size

    def give_back(self, size: int) -> None:
        """Note that such a transaction is over, or the message undone."""
        self._reserved -= 1
        self._reserved_bytes -= size

    def refuse(self, now: Instant, *, elsewhere: bool = False) -> None:
        """Count a refusal; `elsewhere`: its sender waits to hear that there is room."""
        self.refused += 1
        self.refused_at = now
        self.owes_resume |= elsewhere

    def resumed(self) -> None:
        """Note that the refused senders have been told that there is room."""
        self.owes_resume = False
