"""Tap: compares each boxcar that leaves an instance with what is durable there (CHK-8).

Reads:  items of boxcars; the committed rows of the store of the instance that sends them.
Calls:  the history, if something left too early.
Never:  changes a frame, or reads uncommitted rows.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Kind as FrameKind
from brokerd.protocol.frames import decode_boxcar
from brokerd.protocol.items import Ack, AckOnly, Fragment
from brokerd.storage.store import Store
from brokerd.testing import left
from brokerd.testing.history import History, Kind
from brokerd.testing.mangler import Mangler

_HEAD: Final = 5
"""Bytes of a frame's length and kind."""


class Tap:
    """A mangler that inspects frames and passes them to the mangler behind it."""

    def __init__(
        self,
        node: str,
        then: Mangler,
        *,
        store: Callable[[], Store | None],
        history: History,
        counts: Counter[str],
    ) -> None:
        self._node = node
        self._then = then
        self._store = store
        self._history = history
        self._counts = counts

    def __call__(self, frame: bytes) -> list[tuple[float, bytes]]:
        """Inspect a frame and pass it on."""
        if frame[_HEAD - 1 : _HEAD] == bytes((FrameKind.BOXCAR,)):
            store = self._store()
            if store is not None:
                self._inspect(frame[_HEAD:], store)
        return self._then(frame)

    def _inspect(self, payload: bytes, store: Store) -> None:
        known: dict[tuple[bytes, bool], DialogEndpoint | None] = {}
        for item in decode_boxcar(payload):
            if not isinstance(item, Fragment | AckOnly):
                continue
            key = (item.conversation_id, item.from_initiator)
            if key not in known:
                known[key] = left.run_now(store.endpoints.by_conversation(*key))
            endpoint = known[key]
            if endpoint is None:  # the endpoint is gone, or the instance forwards the dialog
                continue
            if isinstance(item, Fragment):
                self._counts["fragments looked at as they left"] += 1
                self._record("fragment", item.sequence, endpoint.send_sequence - 1, endpoint)
            if item.ack is not None:
                self._counts["acks looked at as they left"] += 1
                self._record("ack", item.ack.sequence, _stored(item.ack, endpoint), endpoint)

    def _record(self, op: str, sequence: int, stored: int, endpoint: DialogEndpoint) -> None:
        if sequence > stored:
            self._history.add(
                op,
                Kind.INFO,
                node=self._node,
                dialog=endpoint.conversation_id.hex(),
                side="initiator" if endpoint.is_initiator else "target",
                seq=sequence,
                stored=stored,
            )


def _stored(ack: Ack, endpoint: DialogEndpoint) -> int:
    """Return the highest sequence that is durable as far as it is acknowledged.

    An acknowledgement of a part of a message is covered if the stored fragments reach that far.
    """
    in_part = ack.sequence == endpoint.receive_sequence
    if in_part and ack.fragment < endpoint.receive_fragment:
        return endpoint.receive_sequence
    return endpoint.receive_sequence - 1
