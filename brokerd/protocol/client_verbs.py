"""Client verbs: the arguments of every request, checked before the verb runs (CLP-33).

Reads:  the decoded arrays of `client_frames.Request`.      Calls: msgspec.
Never:  looks anything up; the verbs check names, handles and states.
Each verb is an array-like struct: fields in the order of the wire, trailing ones optional.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from brokerd.errors import BadRequest
from brokerd.protocol.admin_verbs import ADMIN_VERBS, POISON_VERBS, AdminVerb, PoisonVerb
from brokerd.protocol.headers import HeaderMap, find_problem, join
from brokerd.protocol.pairing_verbs import PAIRING_VERBS, PairingVerb

FOREVER_MS: Final = -1
"""`wait_ms` without a limit (RCV-18)."""
MAX_WAIT_MS: Final = 2**31 - 1
MAX_MESSAGES: Final = 1_000_000
"""Highest `max` of a receive (CLP-35)."""
MAX_GROUPS: Final = 1_000
"""Most receives that one request may contain (RCV-44)."""
MAX_TIMER_MS: Final = (2**31 - 1) * 1000
"""Longest delay of a conversation timer, in milliseconds (DLG-35)."""
MAX_PAGE: Final = 1_000
"""Most messages in one page of a browse (CLP-115)."""
MAX_VERBS: Final = 10_000
"""Most verbs in one `transact`, and most handles of one `send` or `end`."""
MAX_STATE: Final = 256 * 1024
"""Longest per-group state, in bytes (CLP-38)."""

COMMITTED: Final = "committed"
NOT_COMMITTED: Final = "not_committed"
UNKNOWN: Final = "unknown"

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
MAX_TOKEN: Final = 2**63 - 1
Token = Annotated[int, Meta(ge=0, le=MAX_TOKEN)]
_Name = Annotated[str, Meta(max_length=1024)]


class Begin(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to open the transaction that it names."""


class Commit(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to commit the transaction under this token (REL-2)."""

    token: Token
    not_counted: list[Annotated[str, Meta(max_length=128)]] = []
    """Error codes; if the first failure of the transaction has one of them, a rollback is not
    counted."""


class RollbackOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `rollback`: its effect on received messages (PSN-16, PSN-17, CLP-116)."""

    error: Annotated[str, Meta(max_length=4096)] = ""
    """Cause of the rollback, shown as the reason why a queue is off or a group parked (PBT-1)."""
    counts: bool = True
    """Whether this rollback counts as one of the rollbacks in a row."""
    retry_ms: Annotated[int, Meta(ge=0, le=MAX_TIMER_MS)] | None = None
    """Milliseconds for which the groups cannot be received."""
    park: Annotated[str, Meta(max_length=1024)] | None = None
    """Reason to park the groups; None = do not park them."""


class Rollback(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to roll the transaction back."""

    options: RollbackOptions = RollbackOptions()


class DialogOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `begin_dialog`; a missing key means the default of DLG-1 to DLG-12."""

    contract: _Name | None = None
    broker_id: bytes | None = None
    """Sixteen bytes; empty = the broker of the connection, CURRENT_DATABASE (DLG-5)."""
    related_conversation: Id | None = None
    related_group: Id | None = None
    lifetime: int | None = None
    """Lifetime in seconds."""
    encryption: bool | None = None
    error_queue: _Name | None = None
    """Queue for the errors of a dialog that the broker itself ends; empty = the queue of the
    service, None = an ordinary dialog (PBT-4)."""

    def __post_init__(self) -> None:
        if self.broker_id is not None and len(self.broker_id) not in (0, 16):
            raise ValueError("broker_id: 16 bytes or none are expected")


class BeginDialog(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to begin a dialog under a handle made by the client (DLG-1)."""

    handle: Id
    from_service: _Name
    to_service: _Name
    options: DialogOptions = DialogOptions()


class Send(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to send one body on one conversation or, atomically, on several (SND-1, SND-8)."""

    handles: Id | Annotated[list[Id], Meta(min_length=1, max_length=MAX_VERBS)]
    message_type: _Name | None = None
    """Name of the message type; None = DEFAULT."""
    body: bytes | None = None
    """The body; None = no body (SND-11). Once parsed, the content: a `Content` if the message has
    headers."""
    headers: HeaderMap | None = None
    """The headers (SND-26); None once parsed, since `body` then contains them."""


class Receive(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to receive from a queue.

    `token` is required without a transaction, and forbidden within one (RCV-16)."""

    queue: _Name
    max_messages: Annotated[int, Meta(ge=0, le=MAX_MESSAGES)] | None = None
    conversation: Id | None = None
    group: Id | None = None
    wait_ms: Annotated[int, Meta(ge=FOREVER_MS, le=MAX_WAIT_MS)] | None = None
    token: Token | None = None
    groups: Annotated[int, Meta(ge=1, le=MAX_GROUPS)] = 1
    """Number of receives that the request contains (RCV-44)."""


class End(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end conversations, with an error if both fields are given (DLG-20, DLG-47)."""

    handles: Id | Annotated[list[Id], Meta(min_length=1, max_length=MAX_VERBS)]
    error_code: int | None = None
    description: str | None = None


class GetGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to lock the best group of a queue and return its id (GRP-14)."""

    queue: _Name
    wait_ms: Annotated[int, Meta(ge=FOREVER_MS, le=MAX_WAIT_MS)] | None = None


class Move(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to move a conversation into another group (GRP-18)."""

    handle: Id
    group_id: Id


class Savepoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to set a savepoint in the transaction (GRP-21)."""

    number: Token


class RollbackTo(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to undo the changes of the transaction since a savepoint (GRP-21)."""

    number: Token


class GetState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the state of a group, which is locked first unless it is already (GRP-22)."""

    group_id: Id
    take_lock: bool = False


class SetState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to replace the state of a group; None deletes it (GRP-22)."""

    group_id: Id
    state: Annotated[bytes, Meta(max_length=MAX_STATE)] | None = None


class SetTimer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to set or reset a conversation timer, or to cancel it (CLP-100)."""

    handle: Id
    after_ms: Annotated[int, Meta(ge=1, le=MAX_TIMER_MS)] | None = None
    """Delay in milliseconds; None = cancel the timer."""
    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Name of the timer; None = the unnamed timer (PBT-23)."""


class ResendPending(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to send the pending messages of one dialog on another (CLP-103)."""

    old: Id
    new: Id


class TransmissionStatus(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the transmission status of a dialog (CLP-101)."""

    handle: Id


class CleanUp(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end a conversation with clean-up; for administrators, outside transactions
    (CLP-102)."""

    handle: Id
    reason: Annotated[str, Meta(max_length=4096)]
    tell_peer: bool = False


class TxOutcome(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the outcome of the transaction with this token."""

    token: Token


class Status(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the status of the instance."""


class Apply(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to make the broker match a declaration of objects (design D9)."""

    objects: dict[str, Any]
    dry_run: bool = False
    terminate_existing: bool = False
    """Whether to end the dialogs that need a dropped object (OBJ-36 to OBJ-38)."""
    ensure: bool = False
    """Whether to only create missing objects, and drop, replace and alter none (SDK-4)."""


class Objects(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the declared objects, all or of one kind, in the form of a file (CLP-80)."""

    kind: _Name | None = None


class Create(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to create one object (CLP-81)."""

    kind: _Name
    object: dict[str, Any]


class Alter(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to alter one object: given keys change, other keys stay; nil = default (CLP-81)."""

    kind: _Name
    object: dict[str, Any]
    terminate_existing: bool = False


class Drop(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to drop one object (CLP-81)."""

    kind: _Name
    name: _Name
    terminate_existing: bool = False


class Browse(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for a page of a queue's contents (OBJ-47)."""

    queue: _Name
    after: tuple[Annotated[int, Meta(ge=0, le=9)], int] | None = None
    """End of the previous page; None = begin with the first page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100
    bodies: bool = True


PlainVerb = BeginDialog | Send | End | Move | SetTimer | SetState
"""Verbs that a `transact` may contain."""


class Transact(Struct, frozen=True):
    """A whole transaction in one request, its token included (CLP-34)."""

    token: int
    verbs: tuple[PlainVerb, ...]


Verb = (
    Begin
    | Commit
    | Rollback
    | PlainVerb
    | Receive
    | GetGroup
    | Savepoint
    | RollbackTo
    | GetState
    | ResendPending
    | Transact
    | TxOutcome
    | Status
    | Apply
    | Browse
    | Objects
    | Create
    | Alter
    | Drop
    | TransmissionStatus
    | CleanUp
    | AdminVerb
    | PoisonVerb
    | PairingVerb
)


class _TransactArgs(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    token: Token
    verbs: Annotated[
        list[
            tuple[
                Literal["begin_dialog", "send", "end", "move", "set_timer", "set_state"], list[Any]
            ]
        ],
        Meta(min_length=1, max_length=MAX_VERBS),
    ]


_PLAIN: Final[dict[str, type[PlainVerb]]] = {
    "begin_dialog": BeginDialog,
    "send": Send,
    "end": End,
    "move": Move,
    "set_timer": SetTimer,
    "set_state": SetState,
}
_VERBS: Final[dict[str, type[Verb]]] = {
    **_PLAIN,
    "begin": Begin,
    "commit": Commit,
    "rollback": Rollback,
    "receive": Receive,
    "get_group": GetGroup,
    "savepoint": Savepoint,
    "rollback_to": RollbackTo,
    "get_state": GetState,
    "resend_pending": ResendPending,
    "tx_outcome": TxOutcome,
    "status": Status,
    "apply": Apply,
    "browse": Browse,
    "objects": Objects,
    "create": Create,
    "alter": Alter,
    "drop": Drop,
    "transmission_status": TransmissionStatus,
    "clean_up": CleanUp,
    **ADMIN_VERBS,
    **POISON_VERBS,
    **PAIRING_VERBS,
}
NAMES: Final = {form: name for name, form in _VERBS.items()}
"""Name of each verb, to report the activity of a lock's holder (GRP-11)."""
VERB_NAMES: Final = frozenset({*_VERBS, "transact"})

IN_TX: Final = frozenset(
    {"begin", "commit", "rollback", "begin_dialog", "send", "receive", "end"}
    | {"get_group", "move", "savepoint", "rollback_to", "get_state", "set_state"}
    | {"set_timer", "resend_pending"}
)
"""Verbs that may name a transaction; all others need tx nil (CLP-33)."""
ALONE: Final = frozenset(
    {"transact", "receive", "tx_outcome", "status", "apply", "browse"}
    | {"objects", "create", "alter", "drop", "transmission_status", "clean_up"}
    | {*ADMIN_VERBS, *POISON_VERBS, *PAIRING_VERBS}
)
"""Verbs that may have tx nil."""
NOT_HELD_BACK: Final = frozenset(
    {"tx_outcome", "status", "apply", "browse", "objects", "transmission_status"}
    | {*ADMIN_VERBS, *PAIRING_VERBS}
)
"""Verbs of `ALONE` that are accepted while an operation excludes other work (MAN-1)."""

_Form = TypeVar("_Form")
_V = TypeVar("_V", bound=Struct)

_POSITION: Final = re.compile(r"\$\[(\d+)\]")


def parse_request(tx: int | None, verb: str, args: list[Any]) -> Verb:
    """Check the verb, transaction and arguments of a request; return the verb.

    Raises:
        BadRequest: the verb, the transaction or an argument is invalid; the text names it.
    """
    if verb not in VERB_NAMES:
        raise BadRequest(f"verb: there is no {verb[:64]!r}")
    if verb not in (ALONE if tx is None else IN_TX):
        raise BadRequest(f"tx: {verb} {'needs' if tx is None else 'comes without'} a transaction")
    parsed = parse_verb(verb, args)
    if isinstance(parsed, Receive):
        _check_receive(parsed, alone=tx is None)
    return parsed


def _check_receive(receive: Receive, *, alone: bool) -> None:
    if (receive.token is not None) != alone:
        raise BadRequest("receive: token is expected exactly when no transaction is named")
    if alone and receive.wait_ms:
        raise BadRequest("receive: wait_ms needs a transaction")
    if alone and receive.groups > 1:
        raise BadRequest("receive: groups needs a transaction")
    if receive.groups > 1 and (receive.conversation or receive.group) is not None:
        raise BadRequest("receive: groups is 1 where a conversation or a group is named")


def parse_verb(verb: str, args: list[Any]) -> Verb:
    """Check the arguments of a known verb; return the verb.

    Raises:
        BadRequest: an argument is invalid; the text names it.
    """
    if verb == "transact":
        return _transact(args)
    return _with_content(_convert(verb, args, _VERBS[verb]))


def _transact(args: list[Any]) -> Transact:
    outer = _convert("transact", args, _TransactArgs)
    parsed = [_with_content(_convert(verb, inner, _PLAIN[verb])) for verb, inner in outer.verbs]
    return Transact(outer.token, tuple(parsed))


def _with_content(verb: _V) -> _V:
    """Return the verb; a send of a message with headers with its content in place of the body.

    The content is made once: whatever works on a send knows its body by identity."""
    if not isinstance(verb, Send) or not verb.headers:
        return verb
    problem = find_problem(verb.headers)
    if problem:
        raise BadRequest(f"send: headers: {problem}")
    content = join(verb.headers, verb.body)
    return msgspec.structs.replace(verb, body=content, headers=None)


def _convert(verb: str, args: list[Any], form: type[_Form]) -> _Form:
    try:
        return msgspec.convert(args, form, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise BadRequest(f"{verb}: {_name_field(str(error), form)}") from None


def _name_field(text: str, form: type) -> str:
    """Return the text with argument names in place of the positions given by msgspec."""

    def name(match: re.Match[str]) -> str:
        position = int(match[1])
        names = [field.name for field in msgspec.structs.fields(form)]
        return names[position] if position < len(names) else match[0]

    return _POSITION.sub(name, text)
