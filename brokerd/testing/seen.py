"""Seen: the messages that the sessions of one instance have sent and received, for assertions.

Called: as the recorder of these sessions (`brokerd.client.recorder`).
Never:  counts messages of a transaction that did not commit.
"""

from collections import Counter
from typing import Any


class Seen:
    """A recorder that holds the messages of a transaction until it ends, and counts them if it
    commits."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[tuple[str, str]] = Counter()
        self._under_way: dict[tuple[bytes, int], list[tuple[str, str, str]]] = {}

    def sent(self, message_type: str) -> int:
        """Return the number of messages of this type sent in committed transactions."""
        return self._sent[message_type]

    def received(self, message_type: str) -> dict[str, int]:
        """Return how often each message of this type was received in committed transactions.

        The key is the dialog and sequence number of the message.
        """
        return {place: n for (name, place), n in self._received.items() if name == message_type}

    def event(self, **fields: Any) -> None:  # noqa: ANN401  # the recorder's own form
        """Record one event of a session."""
        key = (fields["client"], fields["tx"])
        match fields["op"], fields["kind"]:
            case "send", "invoke":
                self._keep(key, "sent", fields.get("message_type") or "DEFAULT", "")
            case "receive", "ok" if fields.get("seq") is not None:
                place = f"{fields['dialog'].hex()[:8]}/{fields['seq']}"
                self._keep(key, "received", fields["message_type"], place)
            case "commit", "ok":
                self._count(key)
            case ("rollback", _) | ("commit", "fail" | "info"):
                self._under_way.pop(key, None)
            case _:
                pass

    def _keep(self, key: tuple[bytes, int], what: str, name: str, place: str) -> None:
        self._under_way.setdefault(key, []).append((what, name, place))

    def _count(self, key: tuple[bytes, int]) -> None:
        for what, name, place in self._under_way.pop(key, []):
            if what == "sent":
                self._sent[name] += 1
            else:
                self._received[name, place] += 1
