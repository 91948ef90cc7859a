"""ROLE: what an instance is for a broker, asked and told between neighbours (RTE-55).

Reads:  nothing; fields in, values out, and back.    Calls: `protocol.wire`.
Never:  knows who is principal; `routing.mirror` judges what is told.
"""

from typing import Any

from msgspec import Struct

from brokerd.ids import ID_SIZE, BrokerId
from brokerd.protocol.wire import MAX_INT, MAX_NAME


class RoleQuestion(Struct, frozen=True):
    """What are you for this broker."""

    broker_id: BrokerId
    epoch: int = 0
    """The highest at which the speaker has known a principal; one that has a lower one is stale."""


class RoleAnswer(Struct, frozen=True):
    """What the speaker is for this broker: when it is asked, and when it has become principal."""

    broker_id: BrokerId
    role: str
    """principal, mirror or unknown; what else a later version may say means unknown."""
    epoch: int = 0
    """That of the broker's store."""


def fields_of(frame: RoleQuestion | RoleAnswer) -> tuple[object, ...]:
    """What is written of it; a question has no role."""
    role = frame.role if isinstance(frame, RoleAnswer) else ""
    return frame.broker_id, role, frame.epoch


def role_of(fields: tuple[Any, ...]) -> RoleQuestion | RoleAnswer:
    """What was written so; `ValueError`, `IndexError` where it is malformed."""
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
