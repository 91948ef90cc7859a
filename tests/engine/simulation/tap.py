"""Tap: compares each boxcar that leaves an instance with what is durable there (CHK-8).

It also watches what is sealed: no nonce serves twice under a key with different contents (SX-5).

Reads:  items of boxcars; the committed rows of the store of the instance that sends them.
Calls:  the history, if something left too early.
Never:  changes a frame, or reads uncommitted rows.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Kind as FrameKind
from brokerd.protocol.frames import decode_boxcar
from brokerd.protocol.items import Ack, AckOnly, Fragment, SecuredFragment
from brokerd.storage.store import Store
from brokerd.testing import left
from brokerd.testing.history import History, Kind
from brokerd.testing.mangler import Mangler

_HEAD: Final = 5
"""Bytes of a frame's length and kind."""


class Nonces:
    """The nonces of all keys of a run, each with what was sealed with it."""

    def __init__(self) -> None:
        self._sealed: dict[tuple[bytes, int, int], bytes] = {}
        self.problems: list[str] = []

    def seen(self, item: SecuredFragment) -> bool:
        """Note what was sealed with a nonce; return whether the nonce was used before."""
        nonce = item.key_id, item.sequence, item.fragment
        # The tag depends on the header as well as on the body.
        now = hashlib.sha256(item.body).digest()
        before = self._sealed.setdefault(nonce, now)
        if before is not now and before != now:
            self.problems.append(
                f"nonce {item.sequence}/{item.fragment} of key {item.key_id.hex()} sealed two "
                f"things in {item.conversation_id.hex()} (SX-5)"
            )
        return before is not now


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
        nonces: Nonces,
    ) -> None:
        self._node = node
        self._then = then
        self._store = store
        self._history = history
        self._counts = counts
        self._nonces = nonces

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
            if type(item) is SecuredFragment:
                self._counts["sealed fragments"] += 1
                self._counts["sealed fragments sent again"] += self._nonces.seen(item)
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
