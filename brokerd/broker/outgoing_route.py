"""Route of a dialog that sends: where its messages go, when, and why they wait (XMT-5 to XMT-19).

Reads: nothing.      Calls: nothing.
Never: decides. `delivery/outgoing/` classifies dialogs, lines them up and keeps their timers; the
       peer's NOTICEs come through `delivery/peers/`. They call its methods, which alone assign.

The route is in memory only: after a restart the dialog is classified again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from brokerd.clock import Instant

if TYPE_CHECKING:
    from brokerd.routing.choice import Choice
    from brokerd.routing.classify import Delayed, OutgoingDecision


class Refusal(NamedTuple):
    """The reason of the peer or of a forwarder for not accepting something (NBT-4)."""

    key: str
    """The status key (XMT-19)."""
    detail: str
    since: Instant


class OutgoingRoute:
    """The route of one dialog that sends, its place in the line, and its timers.

    - `address` is set if and only if the dialog may be sent: it is classified, and the choice of
      its route, if there was one, is stored (RTE-29).
    - A dialog that `is_queued` is in the ready line of its address, once.
    - `matches` is 0 unless the dialog waits for a route.
    """

    __slots__ = (
        "address",
        "choice",
        "decision",
        "detail",
        "is_choosing",
        "is_queued",
        "matched_at",
        "matches",
        "notice",
        "since",
        "status",
        "timed",
        "timer",
    )

    def __init__(self) -> None:
        self.decision: OutgoingDecision | None = None
        """The latest decision; None = never classified, or to be classified again."""
        self.choice: Choice | None = None
        """The route chosen among several, which the dialog keeps (RTE-29)."""
        self.is_choosing = False
        """Whether the dialog waits until its choice of a route is stored (RTE-29)."""
        self.address: str | None = None
        """The address to which the dialog sends; None = it is not classified, or has to wait."""
        self.status = self.detail = ""
        """Status key and detail of the latest delay (XMT-17)."""
        self.since = 0
        """Time at which that status began; 0 = no status."""
        self.matches = 0
        """Number of matches with the routes since the dialog began to wait for a route (XMT-9)."""
        self.matched_at: Instant | None = None
        """Time of the last match with the routes that found none."""
        self.notice: Refusal | None = None
        """The reason of the receiving side for not accepting the latest messages (PBT-2)."""
        self.is_queued = False
        """Whether the dialog is in the ready line of its address."""
        self.timer = 0.0
        """Time at which its retransmission timer is checked (monotonic); 0 = not armed."""
        self.timed: tuple[int, float] | None = None
        """Sequence of the message whose round trip is measured, and when it left (monotonic)."""

    # Classification.

    def classified(self, decision: OutgoingDecision) -> None:
        """Record that a route was found; `send_to` follows once the dialog may use it."""
        self.decision = decision
        self.matches, self.matched_at = 0, None

    def delay(self, decision: Delayed, now: Instant) -> bool:
        """Record that no route was found; return whether the reason is a new one (XMT-9)."""
        self.decision = decision
        self.matches += 1
        self.matched_at = now
        return self.explain(decision.reason, decision.detail, now)

    def explain(self, status: str, detail: str, now: Instant) -> bool:
        """Set the status; return whether it is a new one, which begins now."""
        if (self.status, self.detail) == (status, detail):
            return False
        self.status, self.detail, self.since = status, detail, now
        return True

    def send_to(self, address: str) -> None:
        """Let the dialog send to this address from now on."""
        self.address = address

    def keep_choice(self, choice: Choice | None) -> None:
        """Keep the chosen route, for as long as the dialog is in memory (RTE-29)."""
        self.choice = choice

    def storing_choice(self) -> None:
        """Record that the choice is being stored, and the dialog waits for that (RTE-29)."""
        self.is_choosing = True

    def choice_stored(self) -> None:
        """Record that the choice is durable."""
        self.is_choosing = False

    def choice_outdated(self) -> None:
        """Drop the decision whose choice is being stored, because routing has changed."""
        self.decision = None

    def withdraw(self) -> str | None:
        """Take away the address, so that the dialog is classified again; return the address."""
        before, self.address = self.address, None
        return before

    # The ready line and the timers.

    def joined_line(self) -> None:
        """Record that the dialog was appended to the ready line of its address."""
        self.is_queued = True

    def left_line(self) -> None:
        """Record that the dialog has left its ready line."""
        self.is_queued = False

    def timer_armed(self, at: float) -> None:
        """Record when the retransmission timer is checked; an earlier entry becomes stale."""
        self.timer = at

    def timer_disarmed(self) -> None:
        """Record that the dialog has no valid entry among the timers."""
        self.timer = 0.0

    def measure(self, sequence: int, now: float) -> None:
        """Measure the round trip of a message that leaves now (design D12)."""
        self.timed = sequence, now

    def measured(self, settled: int, now: float) -> float | None:
        """Return the round trip in seconds, and end its measurement.

        None: no message is measured, or the peer has acknowledged only up to `settled`."""
        timed = self.timed
        if timed is None or timed[0] > settled:
            return None
        self.timed = None
        return now - timed[1]

    def stop_measuring(self) -> None:
        """Stop measuring, because the message is sent again, and an ack would fit either copy."""
        self.timed = None

    # Reports of the receiving side.

    def refused(self, key: str, detail: str, now: Instant) -> None:
        """Record why the receiving side did not accept something (PBT-2)."""
        self.notice = Refusal(key, detail, self.status_since(key) or now)

    def refusal_over(self) -> None:
        """Drop the refusal, because newer information on the receiving side is known (XMT-18)."""
        self.notice = None

    def status_since(self, key: str) -> Instant | None:
        """Return the instant since which the status has this key; None = unknown (XMT-18)."""
        if self.notice is not None and key == self.notice.key:
            return self.notice.since
        return Instant(self.since) if self.since and key == self.status else None
