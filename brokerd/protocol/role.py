"""ROLE frames: neighbours ask for and report their roles for a broker (RTE-55).

Reads:  nothing; fields in, values out, and back.    Calls: `protocol.wire`.
Never:  knows which instance is principal; `routing.mirror` evaluates the answers.
"""

from typing import Any

from msgspec import Struct

from brokerd.ids import ID_SIZE, BrokerId
from brokerd.protocol.wire import MAX_INT, MAX_NAME


class RoleQuestion(Struct, frozen=True):
    """A question about the receiver's role for a broker."""

    broker_id: BrokerId
    epoch: int = 0
    """Highest epoch at which the asking instance has known a principal; lower ones are stale."""


class RoleAnswer(Struct, frozen=True):
    """The sender's role for a broker, sent as an answer, or when the sender becomes principal."""

    broker_id: BrokerId
    role: str
    """The role: principal, mirror or unknown; any other word, of a later version, means unknown."""
    epoch: int = 0
    """Epoch of the broker's store."""


def fields_of(frame: RoleQuestion | RoleAnswer) -> tuple[object, ...]:
    """Return the fields of a ROLE frame; in a question the role is empty."""
    role = frame.role if isinstance(frame, RoleAnswer) else ""
    return frame.broker_id, role, frame.epoch


def role_of(fields: tuple[Any, ...]) -> RoleQuestion | RoleAnswer:
    """Return the question or answer in these fields.

    Raises:
        ValueError, IndexError: malformed.
    """
    broker_id, role, epoch = fields[:3]
    if type(broker_id) is not bytes or len(broker_id) != ID_SIZE:
        raise ValueError("an id has sixteen bytes")
    if type(role) is not str or len(role) > MAX_NAME:
        raise ValueError(f"a role is no text, or longer than {MAX_NAME}")
    if type(epoch) is not int or not 0 <= epoch <= MAX_INT:
        raise ValueError(f"an epoch is not within 0 to {MAX_INT}")
    if role:
        return RoleAnswer(BrokerId(broker_id), role, epoch)
    return RoleQuestion(BrokerId(broker_id), epoch)
