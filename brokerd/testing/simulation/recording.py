"""Recording: what the SDK's recorder tells, as events of a history that the checker understands.

Every body begins with the uid of the message, the name of its dialog and the side that sent it,
so both ends of a dialog call it by one name. What becomes of commits whose connection was lost is
counted here (HK-7).
Reads:  events of recorders.      Calls: the history and the trace.
Never:  judges, save that one conversation id belongs to one dialog.
"""

from collections import Counter
from hashlib import blake2b
from typing import Final, NamedTuple

from brokerd.client.recorder import Recorder
from brokerd.testing.history import History, Kind
from brokerd.testing.trace import Trace

INITIATOR: Final = "initiator"
TARGET: Final = "target"
LIFETIME_OVER: Final = b"-8489"
"""What the body of an Error that says so has in it."""
_OTHER: Final = {INITIATOR: TARGET, TARGET: INITIATOR}


class Label(NamedTuple):
    """What a body says about its message."""

    uid: str
    dialog: str
    side: str


def make_body(label: Label, size: int) -> bytes:
    """A body of at least `size` bytes that begins with the label."""
    return "|".join((*label, "")).encode().ljust(size, b".")


def read_label(body: bytes | None) -> Label | None:
    """The label of a body; None if it has none."""
    parts = (body or b"").split(b"|", 3)
    if len(parts) < 4:  # noqa: PLR2004
        return None
    return Label(*(part.decode() for part in parts[:3]))


class Recording(Recorder):
    """All recorders of a run."""

    def __init__(self, history: History, trace: Trace, counts: Counter[str]) -> None:
        self._history = history
        self._trace = trace
        self._counts = counts
        self.problems: list[str] = []
        self.connections: Counter[str] = Counter()
        """How often each client has been connected, by name."""
        self.begun: dict[bytes, None] = {}
        """Handles of dialogs that may have been begun."""
        self.homes: dict[str, str] = {}
        """The instance to which each client connects, where that is always the same."""
        self._names: dict[bytes, str] = {}
        self._commits: dict[tuple[str, int], int] = {}
        self._interactive: set[tuple[str, int]] = set()

    def event(self, **fields: object) -> None:
        """Keep one event of an SDK session."""
        op, kind = str(fields["op"]), Kind(str(fields["kind"]))
        client_id, tx = fields["client"], fields["tx"]
        assert isinstance(client_id, bytes)
        assert isinstance(tx, int)
        client = name_of(client_id)
        self._trace.note(client, f"{op} {kind} {tx}")
        match op:
            case "send":
                self._send(client, tx, fields)
            case "receive":
                self._receive(client, tx, kind, fields)
            case "commit":
                self._commit(client, tx, kind, fields)
            case "begin_dialog":
                handle = fields["handle"]
                assert isinstance(handle, bytes)
                self.begun[handle] = None
            case "savepoint" | "rollback_to":
                number = fields["savepoint"]
                assert isinstance(number, int)
                self._history.add(op, kind, client=client, tx=tx, savepoint=number)
            case _:
                self._history.add(op, kind, client=client, tx=tx)

    def _send(self, client: str, tx: int, fields: dict[str, object]) -> None:
        body = fields["body"]
        label = read_label(body if isinstance(body, bytes) else None)
        if label is None:
            return
        self._counts["messages sent"] += 1
        self._history.add(
            "send",
            Kind.INVOKE,
            client=client,
            tx=tx,
            uid=label.uid,
            dialog=label.dialog,
            side=label.side,
            hash=_hash(body),
        )

    def _receive(self, client: str, tx: int, kind: Kind, fields: dict[str, object]) -> None:
        body, queue = fields.get("body"), str(fields["queue"])
        self._interactive.add((client, tx))
        label = read_label(body if isinstance(body, bytes) else None)
        kind_of_message = str(fields.get("message_type", ""))
        if label is None or kind_of_message not in ("Order", "Reply"):
            self._count_system(kind_of_message, body)
            self._ended(client, tx, kind_of_message, fields)
            self._history.add("receive", kind, client=client, tx=tx, queue=queue)
            return
        conversation_id, seq, group = fields["dialog"], fields["seq"], fields["group"]
        assert isinstance(conversation_id, bytes)
        assert isinstance(seq, int)
        assert isinstance(group, bytes)
        known = self._names.setdefault(conversation_id, label.dialog)
        if known != label.dialog:
            self.problems.append(f"{label.uid} of {label.dialog} arrived in {known}")
        self._counts["messages received"] += 1
        self._trace.note(client, f"got {label.uid}")
        self._history.add(
            "receive",
            kind,
            client=client,
            tx=tx,
            queue=queue,
            broker=self.homes.get(client),
            uid=label.uid,
            dialog=label.dialog,
            side=_OTHER[label.side],
            seq=seq,
            group=group.hex(),
            hash=_hash(body),
        )

    def _ended(self, client: str, tx: int, message_type: str, fields: dict[str, object]) -> None:
        if message_type.rpartition(":")[2] not in ("EndDialog", "Error"):
            return
        conversation_id = fields["dialog"]
        assert isinstance(conversation_id, bytes)
        self._history.add(
            "ended",
            Kind.OK,
            client=client,
            tx=tx,
            dialog=self._names.get(conversation_id, conversation_id.hex()),
            side=INITIATOR if fields["handle"] in self.begun else TARGET,
            reason=message_type,
        )

    def _count_system(self, message_type: str, body: object) -> None:
        name = message_type.rpartition(":")[2]
        if name:
            self._counts[f"received: {name}"] += 1
        if name == "Error" and isinstance(body, bytes) and LIFETIME_OVER in body:
            self._counts["lifetimes over"] += 1

    def _commit(self, client: str, tx: int, kind: Kind, fields: dict[str, object]) -> None:
        reason, token = fields.get("reason"), fields.get("token")
        if kind is Kind.INVOKE:
            self._commits[client, tx] = self.connections[client]
        else:
            self._count_outcome(client, tx, kind, str(reason))
        self._history.add(
            "commit",
            kind,
            client=client,
            tx=tx,
            token=token if isinstance(token, int) else None,
            reason=None if reason is None else str(reason),
        )

    def _count_outcome(self, client: str, tx: int, kind: Kind, reason: str) -> None:
        if kind is Kind.INFO and reason == "CancelledError":
            self._counts["commits of cancelled readers"] += 1  # the instance stopped (REL-28)
        elif kind is Kind.INFO:
            self._counts["commits never learned"] += 1
            self.problems.append(f"the outcome of {client}/{tx} was never learned: {reason}")
        if kind is Kind.OK:
            self._counts["commits"] += 1
        if self._commits.get((client, tx)) == self.connections[client]:
            return
        if (client, tx) not in self._interactive:
            self._counts["unknown commit: repeated"] += 1
        elif kind is Kind.OK:
            self._counts["unknown commit: committed"] += 1
        elif reason == "transaction_aborted":
            self._counts["unknown commit: not committed"] += 1


def name_of(client_id: bytes) -> str:
    """How a client is called in histories."""
    return client_id.hex()[:12]


def _hash(body: object) -> str:
    assert isinstance(body, bytes)
    return blake2b(body, digest_size=8).hexdigest()
