"""Explanation: a decision of `classify`, and the steps that led to it (CLP-98). PURE.

Reads:  the notes of a classification, facts about this instance.      Calls: nothing.
Never:  routes a message: it only formats the notes.
"""

from collections.abc import Iterable

import msgspec

from brokerd.ids import show
from brokerd.routing.classify import (
    ArrivalKey,
    Arriving,
    Delayed,
    DialogKey,
    InstanceFacts,
    Local,
    OutgoingDecision,
    Remote,
)
from brokerd.routing.notes import Finding, Noted
from brokerd.routing.reasons import DropReason

OWN_TABLE = "own"
"""Name of the table of the broker that holds the dialog (RTE-1)."""
INSTANCE_TABLE = "instance"
"""Name of the table for arrivals."""
_WITHOUT_TABLE = frozenset(
    {
        Finding.DELIVERY_OFF,
        Finding.TURNED_ROUND,
        Finding.ROUND_AGAIN,
        Finding.REPLY_HERE,
        Finding.REPLY_OFF,
        Finding.REPLY_NOT_HERE,
        Finding.FORWARDING_OFF,
        Finding.NO_HOP,
    }
)


class Step(msgspec.Struct, frozen=True):
    """The application of one rule."""

    table: str
    """`OWN_TABLE`, `INSTANCE_TABLE`, or empty if no table was used."""
    step: str
    """Label of the step: 1 to 7 for matching, A to D for choosing, otherwise a word."""
    finding: str
    routes: tuple[str, ...] = ()
    """Names of the routes that the step is about."""


class Explanation(msgspec.Struct, frozen=True):
    """A decision, and every step that led to it."""

    outcome: str
    """The decision: local, remote, delayed, dropped or refused."""
    where: str
    """Name of the broker, or the address; empty if the message goes nowhere."""
    reason: str
    """Key of the obstacle (XMT-19); empty if the message is not held up."""
    route: str
    """Name of the chosen route."""
    hops_used: int
    steps: tuple[Step, ...]


def explain(
    key: DialogKey | ArrivalKey,
    decision: OutgoingDecision | Arriving,
    noted: Iterable[Noted],
    facts: InstanceFacts,
    *,
    begins: bool,
) -> Explanation:
    """Return the explanation of a decision, from the steps noted during its classification.

    `begins`: whether the message may begin a dialog at its target, which then needs the service.
    """
    steps = tuple(_steps(key, noted, begins=begins))
    if isinstance(decision, Local):
        where = facts.name_of(decision.broker_id)
        if begins and not facts.serves(decision.broker_id, key.service_name):
            refused = DropReason.SERVICE_NOT_IN_BROKER
            return Explanation("refused", where, refused, decision.route, 0, steps)
        return Explanation("local", where, "", decision.route, 0, steps)
    if isinstance(decision, Remote):
        used = decision.hops_used
        return Explanation("remote", decision.address, "", decision.route, used, steps)
    outcome = "delayed" if isinstance(decision, Delayed) else "dropped"
    return Explanation(outcome, "", decision.reason, "", 0, steps)


def explain_here(broker: str, finding: str, *, reason: str = "") -> Explanation:
    """Return the explanation for a dialog that its broker serves itself, without using routes.

    `reason`: key of the refusal; empty if the message is delivered."""
    step = Step("", "here", finding)
    return Explanation("refused" if reason else "local", broker, reason, "", 0, (step,))


def _steps(key: DialogKey | ArrivalKey, noted: Iterable[Noted], *, begins: bool) -> Iterable[Step]:
    table = OWN_TABLE if isinstance(key, DialogKey) else INSTANCE_TABLE
    for note in noted:
        finding = note.finding
        if finding is Finding.REFUSES and not begins:  # a dialog that exists needs no service
            finding = Finding.LOCATED
        sentence = finding.sentence.format(
            *note.details,
            service=key.service_name,
            broker="" if key.broker_id is None else show(key.broker_id),
            count=len(note.routes) or "none",
        )
        where = "" if finding in _WITHOUT_TABLE else table
        yield Step(where, finding.step, sentence, note.routes)
        if finding is Finding.TURNED_ROUND:  # from here on it counts as an arrival
            table = INSTANCE_TABLE
