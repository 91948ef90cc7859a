"""Recording: turns events of the SDK's recorder into events of a history for the checker.

Every body begins with the uid of the message, the name of its dialog and the side that sent it,
so that both sides of a dialog use one name for it. A message to several dialogs names them all, and
counts as a message of each. A timer has such a label as its name, and counts as a message that a
dialog sends to itself: it must come if its transaction committed, only then, and once. The outcomes
of commits whose connection was lost are counted here (HK-7).
Reads:  events of recorders.      Calls: the history and the trace.
Never:  checks anything, except that one conversation id belongs to one dialog.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from brokerd.client.link import MOST_LOSSES
from brokerd.client.recorder import Recorder
from brokerd.testing.history import History, Kind
from brokerd.testing.trace import Trace

INITIATOR: Final = "initiator"
TARGET: Final = "target"
SEVERAL: Final = "&"
"""Separator of the names of dialogs to which one message is sent."""
OWN: Final = "~"
"""Separator of the name of a dialog and the uid of its timer."""
LARGE: Final = 5 * 1024
LIFETIME_OVER: Final = b"-8489"
"""Part of the body of an Error that reports the end of a lifetime."""
_OTHER: Final = {INITIATOR: TARGET, TARGET: INITIATOR}


class Label(NamedTuple):
    """The identity of a message, with which its body begins."""

    uid: str
    dialog: str
    side: str


def make_body(label: Label, size: int) -> bytes:
    """Return a body of at least `size` bytes that begins with the label."""
    return "|".join((*label, "")).encode().ljust(size, b".")


def make_headers(body: bytes) -> dict[str, str | bytes]:
    """Return the headers that go with a body, made of its label; two in three bodies have none."""
    label = read_label(body)
    number = 0 if label is None else crc32(label.uid.encode())
    if label is None or number % 3:
        return {}
    return {"uid": label.uid, "ce-source": f"/{label.dialog}", "padding": b"\0" * (number % 4096)}


def read_label(body: bytes | None) -> Label | None:
    """Return the label of a body; None if it has none."""
    parts = (body or b"").split(b"|", 3)
    if len(parts) < 4:
        return None
    return Label(*(part.decode() for part in parts[:3]))


def uids_in(body: bytes | None) -> list[str]:
    """Return the uids of a stored body: one for each dialog it was sent to."""
    label = read_label(body)
    if label is None:
        return []
    if SEVERAL not in label.dialog:
        return [label.uid]
    return [f"{label.uid}@{name}" for name in label.dialog.split(SEVERAL)]


class Recording(Recorder):
    """The recorder of all sessions of a run."""

    def __init__(self, history: History, trace: Trace, counts: Counter[str]) -> None:
        self._history = history
        self._trace = trace
        self._counts = counts
        self.problems: list[str] = []
        self.connections: Counter[str] = Counter()
        """Number of connections of each client, by its name."""
        self.begun: dict[bytes, None] = {}
        """Handles of dialogs that may have been begun."""
        self.homes: dict[str, str] = {}
        """The instance whose broker each client or reader uses, by its name."""
        self._names: dict[bytes, str] = {}
        self._commits: dict[tuple[str, int], int] = {}
        self._interactive: set[tuple[str, int]] = set()

        self.named: dict[bytes, str] = {}
        """Names of dialogs by their handle at the initiator."""
        self.undone: set[str] = set()
        """Messages whose send was undone by a savepoint."""
        self._sent: dict[tuple[str, int], list[str]] = {}
        self._marks: dict[tuple[tuple[str, int], object], int] = {}
        self._undoing: dict[tuple[tuple[str, int], object], list[str]] = {}
        self._due: dict[str, int] = {}
        self.second_home = ("", "")
        """Instance and queue of the second home of a service with two homes."""
        self.was_down_at: Callable[[float], bool] = lambda _at: False
        """Returns whether the instance of the shop was down at a virtual time."""
        self.passed: Callable[[str, str], None] = lambda _name, _home: None
        """Called with the failpoint that a client passes and the instance it uses (HK-6)."""
        self.judges_time = True
        """Whether to check that no timer comes early; not in runs with small clock jumps."""

    def name_of_conversation(self, conversation_id: bytes) -> str | None:
        """Return the name of a dialog; None if no labelled message of it was received."""
        return self._names.get(conversation_id)

    def at(self, home: str) -> Recorder:
        """Return a recorder for the readers that an instance starts."""
        return _At(self, home)

    def dialog_of(self, label: Label, conversation_id: bytes) -> str:
        """Return the name of the dialog in which a message with this label was received."""
        return self._names[conversation_id] if SEVERAL in label.dialog else label.dialog

    def event(self, **fields: object) -> None:
        """Add one event of an SDK session to the history."""
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
                if kind is Kind.OK:
                    self.passed("tx.after_receive", self.homes.get(client, ""))
            case "commit":
                self._commit(client, tx, kind, fields)
            case "begin_dialog":
                handle = fields["handle"]
                assert isinstance(handle, bytes)
                self.begun[handle] = None
            case "set_timer":
                self._set_timer(client, tx, fields)
            case "savepoint" | "rollback_to":
                self._interactive.add((client, tx))
                self._savepoint(op, kind, (client, tx), fields["savepoint"])
                number = fields["savepoint"]
                assert isinstance(number, int)
                self._history.add(op, kind, client=client, tx=tx, savepoint=number)
            case _:
                self._history.add(op, kind, client=client, tx=tx)
                if op == "rollback":
                    self.passed("tx.before_rollback", self.homes.get(client, ""))

    def _send(self, client: str, tx: int, fields: dict[str, object]) -> None:
        body = fields["body"]
        label = read_label(body if isinstance(body, bytes) else None)
        if label is None:
            return
        uid, dialog = label.uid, label.dialog
        self._sent.setdefault((client, tx), []).append(uid)
        if SEVERAL in dialog:
            handle = fields["handle"]
            assert isinstance(handle, bytes)
            dialog = self.named[handle]
            uid = f"{uid}@{dialog}"
            self._counts["messages sent to several dialogs"] += 1
        self._counts["messages sent"] += 1
        self._counts["large messages sent"] += len(body) > LARGE if isinstance(body, bytes) else 0
        self._counts["messages sent with headers"] += bool(fields["headers"])
        self._history.add(
            "send",
            Kind.INVOKE,
            client=client,
            tx=tx,
            uid=uid,
            dialog=dialog,
            side=label.side,
            hash=_hash(body, fields["headers"]),
        )

    def _savepoint(self, op: str, kind: Kind, tx: tuple[str, int], number: object) -> None:
        """Note which sends a rollback to a savepoint has undone.

        They are listed when the rollback is requested, and count as undone once it is confirmed.
        """
        sent = self._sent.get(tx, [])
        if op == "savepoint":
            self._marks[tx, number] = len(sent)
        elif kind is Kind.INVOKE:
            self._undoing[tx, number] = sent[self._marks[tx, number] :]
        else:
            self.undone.update(self._undoing[tx, number])

    def _set_timer(self, client: str, tx: int, fields: dict[str, object]) -> None:
        label, after = read_label(str(fields["timer"]).encode()), fields["after"]
        if label is None:
            return
        if after is None:
            self._history.add("account", Kind.OK, uid=label.uid, reason="cancelled")
            return
        assert isinstance(after, int)
        event = self._history.add(
            "send",
            Kind.INVOKE,
            client=client,
            tx=tx,
            uid=label.uid,
            dialog=label.dialog,
            side=label.side,
        )
        self._counts["timers set"] += 1
        self._due[label.uid] = event.t + after * 1000

    def _timer(self, client: str, tx: int, label: Label, fields: dict[str, object]) -> None:
        """Record a received timer, and the time before which it must not come (CHK-12)."""
        self._counts["timers received"] += 1
        self._history.add(
            "receive",
            Kind.OK,
            client=client,
            tx=tx,
            queue=str(fields["queue"]),
            uid=label.uid,
            dialog=label.dialog,
            side=_OTHER[label.side],
        )
        due = self._due.get(label.uid, 0)
        self._counts["timers due while down"] += self.was_down_at(due / 1_000_000)
        if self.judges_time:
            self._history.add("due", Kind.INFO, dialog=label.dialog, reason="a timer", seq=due)

    def _receive(self, client: str, tx: int, kind: Kind, fields: dict[str, object]) -> None:
        """Record one event of a receive: a timer, a labelled message, or anything else.

        A message to several dialogs says nothing about the one it came in. That is known from an
        earlier message of the dialog: a writer sends each dialog one of its own first.
        """
        body, queue = fields.get("body"), str(fields["queue"])
        self._interactive.add((client, tx))
        label = read_label(body if isinstance(body, bytes) else None)
        kind_of_message = str(fields.get("message_type", ""))
        timer = fields.get("timer")
        if isinstance(timer, str) and (of_timer := read_label(timer.encode())) is not None:
            self._timer(client, tx, of_timer, fields)
            return
        if label is None or kind_of_message not in ("Order", "Reply"):
            self._count_system(kind_of_message, body)
            self._ended(client, tx, kind_of_message, fields)
            self._history.add("receive", kind, client=client, tx=tx, queue=queue)
            return
        conversation_id, seq, group = fields["dialog"], fields["seq"], fields["group"]
        assert isinstance(conversation_id, bytes)
        assert isinstance(seq, int)
        assert isinstance(group, bytes)
        uid, dialog = label.uid, label.dialog
        if SEVERAL in dialog:
            known = self._names.get(conversation_id, "?")
            if known not in dialog.split(SEVERAL):
                self.problems.append(f"{uid} of {dialog} arrived in {known}")
            uid, dialog = f"{uid}@{known}", known
        known = self._names.setdefault(conversation_id, dialog)
        if known != dialog:
            self.problems.append(f"{uid} of {dialog} arrived in {known}")
        self._counts["messages received"] += 1
        self._counts["second home reached"] += (self.homes.get(client), queue) == self.second_home
        self._trace.note(client, f"got {uid}")
        self._history.add(
            "receive",
            kind,
            client=client,
            tx=tx,
            queue=queue,
            broker=self.homes.get(client),
            uid=uid,
            dialog=dialog,
            side=_OTHER[label.side],
            seq=seq,
            group=group.hex(),
            hash=_hash(body, fields["headers"]),
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

    def _lost(self, client: str, tx: int) -> bool:
        """Return whether the commit lost as many connections as the SDK tolerates (REL-2)."""
        return self.connections[client] - self._commits[client, tx] >= MOST_LOSSES - 1

    def _count_outcome(self, client: str, tx: int, kind: Kind, reason: str) -> None:
        """Count the outcome of a commit; an outcome never learned is a problem.

        It may stay unknown only if the session was cancelled or lost too many connections.
        """
        if kind is Kind.INFO and reason == "CancelledError":
            self._counts["commits of cancelled readers"] += 1  # the instance stopped (REL-28)
        elif kind is Kind.INFO and reason == "outcome_unknown" and self._lost(client, tx):
            self._counts["commits given up"] += 1
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


class _At(Recorder):
    def __init__(self, recording: Recording, home: str) -> None:
        self._recording = recording
        self._home = home

    def event(self, **fields: object) -> None:
        client_id = fields["client"]
        assert isinstance(client_id, bytes)
        self._recording.homes[name_of(client_id)] = self._home
        self._recording.event(**fields)


def name_of(client_id: bytes) -> str:
    """Return the name of a client in histories."""
    return client_id.hex()[:12]


def _hash(body: object, headers: object) -> str:
    """Return a hash of all that the far side must receive as it was sent."""
    assert isinstance(body, bytes)
    return blake2b(body + repr(headers).encode(), digest_size=8).hexdigest()
