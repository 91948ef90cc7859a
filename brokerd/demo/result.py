"""The result of a demo: figures as text and for programs, and the verdict. Pure."""

from typing import Final

import msgspec

MEMORY_LIMIT: Final = 200 * 1024 * 1024
"""Limit of a daemon's memory, in bytes."""


class Kill(msgspec.Struct):
    """One SIGKILL and its consequences; times in seconds."""

    instance: str
    at: float
    """Time since the client began."""
    answered: int
    """Number of messages answered before the kill."""
    ready_after: float = 0.0
    """Time from the kill until the new process answered a client."""
    pause: float = 0.0
    """The longest time without a reply, from the kill to the next kill or to the end."""


class Memory(msgspec.Struct):
    """The peak memory of one instance, in bytes."""

    instance: str
    peaks: list[int]
    """The peak memory of each process of the instance, in the order of their starts."""

    @property
    def peak(self) -> int:
        """The highest peak of all processes of the instance."""
        return max(self.peaks, default=0)


class DemoResult(msgspec.Struct):
    """All figures and faults of a demo, which succeeded if `differs` is empty."""

    directory: str
    differs: list[str] = []
    """Deviations from the required result, one sentence each."""
    dialogs: int = 0
    sent: int = 0
    answered: int = 0
    replies: int = 0
    lost: int = 0
    doubled: int = 0
    redone: int = 0
    """Number of repeated transactions of the client: undone by a kill, or refused for a while."""
    orders_per_second: float = 0.0
    """Messages per second whose sending was confirmed as durable."""
    replies_per_second: float = 0.0
    conversing_seconds: float = 0.0
    settling_seconds: float = 0.0
    report_seconds: float = 0.0
    total_seconds: float = 0.0
    kills: list[Kill] = []
    memory: list[Memory] = []
    exit_statuses: dict[str, int] = {}
    report: str | None = None
    """Path of the report page."""
    report_verdict: str = ""

    @property
    def ok(self) -> bool:
        """Whether the demo succeeded."""
        return not self.differs

    @property
    def verdict(self) -> str:
        """The verdict as one line, the last that the demo prints."""
        if self.ok:
            return (
                f"demo: settled: {self.sent} sent, {self.answered} answered, "
                f"{self.lost} lost, {self.doubled} doubled"
            )
        more = f" (and {len(self.differs) - 1} more)" if len(self.differs) > 1 else ""
        first = self.differs[0].splitlines()[0]
        return f"demo: FAILED: {first}{more}"


def mib(size: int) -> str:
    """Return a number of bytes as text, in MiB."""
    return f"{size / 1024**2:.0f} MiB"


def described(result: DemoResult) -> list[str]:
    """Return the figures as lines of text."""
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
