"""What a demo came to: figures for people and programs, and the verdict. Pure."""

from typing import Final

import msgspec

MEMORY_LIMIT: Final = 200 * 1024 * 1024
"""Bytes that a daemon must stay below."""


class Kill(msgspec.Struct):
    """One SIGKILL and what came after it; times in seconds."""

    instance: str
    at: float
    """Since the client began."""
    answered: int
    """Messages answered until then."""
    ready_after: float = 0.0
    """Until the new process answered a client."""
    pause: float = 0.0
    """The longest time without a reply, from then to the next kill or the end."""


class Memory(msgspec.Struct):
    """Most memory of one instance, in bytes."""

    instance: str
    peaks: list[int]
    """Of each of its processes, the first one first."""

    @property
    def peak(self) -> int:
        """Of all of them."""
        return max(self.peaks, default=0)


class DemoResult(msgspec.Struct):
    """Everything a demo found out. It succeeded if `differs` is empty."""

    directory: str
    differs: list[str] = []
    """What is not as it must be, a sentence each."""
    dialogs: int = 0
    sent: int = 0
    answered: int = 0
    replies: int = 0
    lost: int = 0
    doubled: int = 0
    redone: int = 0
    """Transactions of the client that were undone by a kill and done again."""
    orders_per_second: float = 0.0
    """Sends confirmed as durable."""
    replies_per_second: float = 0.0
    conversing_seconds: float = 0.0
    settling_seconds: float = 0.0
    report_seconds: float = 0.0
    total_seconds: float = 0.0
    kills: list[Kill] = []
    memory: list[Memory] = []
    exit_statuses: dict[str, int] = {}
    report: str | None = None
    """Path of the page."""
    report_verdict: str = ""

    @property
    def ok(self) -> bool:
        """Whether all is as it must be."""
        return not self.differs

    @property
    def verdict(self) -> str:
        """The last line."""
        if self.ok:
            return (
                f"demo: settled: {self.sent} sent, {self.answered} answered, "
                f"{self.lost} lost, {self.doubled} doubled"
            )
        more = f" (and {len(self.differs) - 1} more)" if len(self.differs) > 1 else ""
        first = self.differs[0].splitlines()[0]
        return f"demo: FAILED: {first}{more}"


def mib(size: int) -> str:
    """Bytes in MiB, as people write it."""
    return f"{size / 1024**2:.0f} MiB"


def described(result: DemoResult) -> list[str]:
    """The figures, a line each."""
    lines = [
        f"sent       {result.sent} messages in {result.dialogs} dialogs, "
        f"{result.orders_per_second:.0f} a second, each confirmed as durable",
        f"answered   {result.answered} by {result.replies} replies, "
        f"{result.replies_per_second:.0f} replies a second",
    ]
    lines += [
        f"killed     {kill.instance} at {kill.at:.1f} s with {kill.answered} answered; "
        f"it answered again after {kill.ready_after:.1f} s, "
        f"longest time without a reply {kill.pause:.1f} s"
        for kill in result.kills
    ]
    if result.kills:
        lines.append(f"redone     {result.redone} transactions of the client")
    for memory in result.memory:
        each = ", ".join(mib(peak) for peak in memory.peaks)
        lines.append(f"memory     {memory.instance} at most {mib(memory.peak)} ({each})")
    lines.append(
        f"time       conversing {result.conversing_seconds:.1f} s, "
        f"settling {result.settling_seconds:.1f} s, all {result.total_seconds:.1f} s"
    )
    return lines
