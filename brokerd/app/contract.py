"""Contract: the message types that each side may send, as Python types (SDK-3).

PURE.  Calls: bodies.
Never:  asks a broker; `Session.declare` passes it the objects of a contract.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from brokerd.app import bodies
from brokerd.app.bodies import Kind
from brokerd.client.messages import Body, Message
from brokerd.errors import InvalidArgument, NotInContract, UnexpectedMessage
from brokerd.model import DEFAULT

END_OF_STREAM: Final = "EndOfStream"
"""Message type that ends a stream. No message follows it, so that the target, which has handled all
messages by then, is the first side to end (PBT-22)."""

_Kinds = Mapping[str, Kind] | Iterable[Kind]


class Contract:
    """A contract: its name, and for each side the types that it may send.

    `initiator`, `target`, `any`: the types that this side, or either side, may send. Give classes,
    whose names become the message types, or a mapping of message types to Python types. A class
    has one message type. `lifetime`: that of dialogs under the contract, seconds or a timedelta.

    Raises:
        InvalidArgument: a message type has two Python types, or the initiator could send nothing
            (OBJ-24).
    """

    def __init__(
        self,
        name: str,
        *,
        initiator: _Kinds = (),
        target: _Kinds = (),
        any: _Kinds = (),  # the spec's own word (OBJ-23)
        lifetime: float | timedelta | None = None,
    ) -> None:
        self.name = name
        self.lifetime = lifetime
        self._sides = {
            "initiator": bodies.named(initiator),
            "target": bodies.named(target),
            "any": bodies.named(any),
        }
        self.kinds: dict[str, Kind] = {}
        """The Python type of each message type."""
        for side in self._sides.values():
            for message_type, kind in side.items():
                if self.kinds.setdefault(message_type, kind) is not kind:
                    raise InvalidArgument(f"contract {name}: {message_type} stands for two types")
        if name != DEFAULT and not self._sides["initiator"] and not self._sides["any"]:
            raise InvalidArgument(
                f"contract {name}: the initiator could send nothing (OBJ-24)",
                hint="say what it may send: Contract(name, initiator=[Order])",
            )

    @classmethod
    def default(cls, kind: Kind = bytes) -> "Contract":
        """Return the contract DEFAULT, whose only message type both sides may send (OBJ-30).

        Raises: nothing.
        """
        return cls(DEFAULT, any={DEFAULT: kind})

    def __repr__(self) -> str:
        """Return the text for error messages."""
        return f"Contract({self.name!r})"

    @property
    def types(self) -> dict[str, str]:
        """Message types, each with the side that may send it, as in a file of objects."""
        found = {name: side for side, kinds in self._sides.items() for name in kinds}
        if self.name != DEFAULT:
            found.setdefault(END_OF_STREAM, "initiator")
        for name in self._sides["initiator"].keys() & self._sides["target"].keys():
            found[name] = "any"
        return found

    def objects(self) -> dict[str, list[dict[str, object]]]:
        """Return the contract and its message types as in a file of objects; none for DEFAULT.

        Raises: nothing.
        """
        if self.name == DEFAULT:
            return {"message_type": [], "contract": []}
        types = self.types
        return {
            "message_type": [
                {"name": name, "validation": "empty" if self._is_empty(name) else "none"}
                for name in types
            ],
            "contract": [{"name": self.name, "types": types}],
        }

    # Values and messages.

    def write(self, value: object) -> tuple[str, Body]:
        """Return the message type and the body of a value.

        Raises:
            NotInContract: the contract has no message type for the value.
            InvalidArgument: the value cannot be written as JSON.
        """
        if self.name == DEFAULT:
            return DEFAULT, bodies.encode(value)
        for name, kind in self.kinds.items():
            if bodies.is_a(value, kind):
                return name, bodies.encode(value)
        raise NotInContract(
            f"contract {self.name} has no message type for {type(value).__name__}",
            hint=f"it has: {', '.join(self.kinds)}",
        )

    def read(self, message: Message) -> object:
        """Return the value of a message.

        Raises:
            UnexpectedMessage: the message type is not in this contract.
            ValueError: the body is not a value of the Python type.
        """
        if message.message_type not in self.kinds:
            raise UnexpectedMessage(
                f"contract {self.name} has no message type {message.message_type}"
            )
        return bodies.decode(message.body, self.kinds[message.message_type])

    @property
    def streams(self) -> bool:
        """Whether the contract has the message type that ends a stream."""
        return self.name != DEFAULT

    def starts(self, value: object) -> bool:
        """Return whether the initiator may send this value.

        Raises: nothing.
        """
        sides = (self._sides["initiator"], self._sides["any"])
        return any(bodies.is_a(value, kind) for side in sides for kind in side.values())

    def _is_empty(self, name: str) -> bool:
        return name == END_OF_STREAM or self.kinds[name] is None


def is_end_of_stream(message: Message) -> bool:
    """Return whether the message announces that no other message follows on its dialog.

    Raises: nothing.
    """
    return message.message_type == END_OF_STREAM
