"""Verbs: what each one checks, locks and notes in its transaction (DLG, SND, GRP).

PURE.  A verb raises `Refused`, or `MustWait` before it has done anything; asked again later it
goes on where it stood. What it does to others happens at the commit (`world.py`).
"""

from collections.abc import Sequence

from tests.model.reference.catalog import DEFAULT
from tests.model.reference.state import (
    Begin,
    Dialog,
    End,
    Endpoint,
    Group,
    Headers,
    Move,
    MustWait,
    Refused,
    Send,
    SetState,
    SetTimer,
    Transaction,
)
from tests.model.reference.world import GONE, World, may_send

LONGEST = 2**31 - 1
USUAL = 365 * 86_400
"""The lifetime of a dialog that is begun without one (REL-43)."""
ENDED = (GONE, "DO", "CD")
_OWNED = ("SO", "CO", "DI", "ER")
_NO_LONGER = ("invalid_state", "conversation_not_found")
"""An endpoint this transaction has ended itself: its state is DO or it is gone, after T3, T16
and T17 gone at once; which of them the transaction sees nobody says."""


class Verbs(World):
    """The verbs that name a conversation or a group."""

    def begin_dialog(
        self,
        tx: Transaction,
        handle: bytes,
        from_service: str,
        to_service: str,
        *,
        contract: str | None = None,
        related_conversation: bytes | None = None,
        related_group: bytes | None = None,
        lifetime: int | None = None,
    ) -> None:
        """DLG-1 to DLG-11."""
        if related_conversation is not None and related_group is not None:
            raise Refused("invalid_argument")
        if from_service not in self.catalog.services:
            raise Refused("service_not_found")
        contract = DEFAULT if contract is None else contract
        if not self.catalog.has_contract(contract):
            raise Refused("contract_not_found")
        if lifetime is not None and not 1 <= lifetime <= LONGEST:
            raise Refused("invalid_lifetime")
        if any(one.handle == handle for one in (*self.endpoints, *tx.begun)):
            raise Refused("invalid_argument")
        group = self._related(tx, from_service, related_conversation, related_group)
        if group.service != from_service:  # DLG-8; it never changes, so this needs no lock
            raise Refused("group_service_mismatch")
        self.lock(tx, group)
        endpoint = Endpoint(
            dialog=Dialog(contract, self.now + (USUAL if lifetime is None else lifetime)),
            is_initiator=True,
            service=from_service,
            far_service=to_service,
            queue=self.catalog.services[from_service].queue,
            group=group,
            level=self.catalog.level(contract, from_service, to_service),
            state="SO",
            handle=handle,
        )
        tx.begun.append(endpoint)
        tx.done.append(Begin(endpoint))
        tx.states[endpoint] = "SO"

    def _related(
        self, tx: Transaction, service: str, conversation: bytes | None, group: bytes | None
    ) -> Group:
        if conversation is not None:
            return tx.group_of(self.known(tx, conversation))
        if group is None:
            return Group(service)  # DLG-9
        found = self.group(tx, group)
        if found is None:  # DLG-7; it may have locked what is gone, or made it just now
            found = next((one for one in tx.locked if one.id == group), None)
        if found is None:
            found = Group(service, group)
        return found

    def send(
        self,
        tx: Transaction,
        handles: Sequence[bytes],
        message_type: str,
        body: bytes | None,
        headers: Headers,
    ) -> None:
        """SND-1 to SND-10. Of several things wrong any may be told."""
        endpoints = self._all_locked(tx, handles)
        problems = self._type_problems(endpoints, message_type)
        states = {tx.state_of(one) for one in endpoints}
        if not states <= {"SO", "CO"}:
            problems += _NO_LONGER if GONE in states else ("invalid_state",)
        if any(one.queue in self.off and self.retains[one.queue] for one in endpoints):
            problems.append("queue_disabled")  # the copy could not be kept (RCV-35, ERR-9617)
        if problems:
            raise Refused(*problems)
        for endpoint in endpoints:
            tx.done.append(Send(endpoint, message_type, body, headers))
            tx.states[endpoint] = "CO"

    def _type_problems(self, endpoints: list[Endpoint], message_type: str) -> list[str]:
        if message_type.startswith("urn:brokerd:"):
            return ["reserved_message_type"]
        if not self.catalog.has_type(message_type):
            return ["message_type_not_found", "not_in_contract"]
        found = []
        for one in endpoints:
            allowed = self.catalog.sender(one.dialog.contract, message_type)
            found.append(may_send(allowed, one.side))
        return [one for one in found if one is not None]

    def end(
        self, tx: Transaction, handles: Sequence[bytes], error: int | None, text: str | None
    ) -> None:
        """DLG-18 to DLG-22, DLG-47. Of several things wrong any may be told."""
        if (error is None) != (text is None):
            raise Refused("error_needs_code_and_text")
        if error is not None and error <= 0:
            raise Refused("invalid_argument", "error_needs_code_and_text")
        endpoints = self._all_locked(tx, handles)
        for endpoint in endpoints:
            self._check_state(tx, endpoint, _OWNED)
        for endpoint in endpoints:
            tx.done.append(End(endpoint, error))
            tx.states[endpoint] = GONE

    def move(self, tx: Transaction, handle: bytes, group_id: bytes) -> None:
        """GRP-18 to GRP-20."""
        group = self.group(tx, group_id)
        endpoint = self.known(tx, handle, *(("group_not_found",) if group is None else ()))
        if group is None:
            raise Refused("group_not_found")
        for each in sorted({tx.group_of(endpoint), group}, key=self.real_id):
            self.lock(tx, each)
        self._check_state(tx, endpoint, _OWNED)
        if group.service != endpoint.service:
            raise Refused("group_service_mismatch")
        if group is tx.group_of(endpoint):
            return  # nothing is done to it, and its view stays free
        tx.states[endpoint] = tx.state_of(endpoint)  # DLG-46
        tx.done.append(Move(endpoint, group))
        tx.groups[endpoint] = group

    def set_timer(
        self, tx: Transaction, handle: bytes, after: float | None, name: str | None
    ) -> None:
        """DLG-35 to DLG-40, PBT-23."""
        endpoint = self.known(tx, handle)
        self.lock(tx, tx.group_of(endpoint))
        self._check_state(tx, endpoint, _OWNED)
        due_at = None if after is None else self.now + after
        if due_at is not None and due_at > endpoint.dialog.expires_at:
            raise Refused("timer_beyond_lifetime")
        tx.done.append(SetTimer(endpoint, name, due_at))

    def get_state(self, tx: Transaction, group_id: bytes, take_lock: bool) -> bytes | None:
        """GRP-22; the group must be locked by this transaction, or is now (CLP-110)."""
        if take_lock:
            found = self.group(tx, group_id)
            if found is None:
                raise Refused("group_not_found")
            self.lock(tx, found)
        group = self._locked(tx, group_id)
        return tx.kept.get(group, group.state)

    def set_state(self, tx: Transaction, group_id: bytes, state: bytes | None) -> None:
        """The same, for changing."""
        group = self._locked(tx, group_id)
        tx.kept[group] = state
        tx.done.append(SetState(group, state))

    # Finding and locking.

    def known(self, tx: Transaction, handle: bytes, *also: str) -> Endpoint:
        """The endpoint with this handle, committed or begun by a transaction.

        One that another transaction has begun is in a group that it has locked: who names it
        waits, and judges what is there then (GRP-9). `also`: what else is wrong, and may be told
        instead.
        """
        begun = [endpoint for each in self.open for endpoint in each.begun]
        for endpoint in (*self.endpoints, *tx.begun, *begun):
            if endpoint.handle == handle:
                return endpoint
        kept = ("invalid_state",) if handle in self.tombstones else ()
        raise Refused("conversation_not_found", *kept, *also)

    def _all_locked(self, tx: Transaction, handles: Sequence[bytes]) -> list[Endpoint]:
        """The endpoints with these handles, their groups locked (SND-10).

        One that has ended and is `kept` for what may still come is no longer known, but is judged
        like those that are, when all are locked."""
        twice = ["duplicate_handle"] if len(set(handles)) < len(handles) else []
        endpoints: list[Endpoint] = []
        ended: Refused | None = None
        for handle in handles:
            try:
                endpoints.append(self.known(tx, handle, *twice))
            except Refused as refused:
                if handle not in self.tombstones or not self.kept(handle):
                    raise
                ended = refused
        if twice:
            raise ended or Refused(*twice)
        for group in sorted({tx.group_of(one) for one in endpoints}, key=self.real_id):
            self.lock(tx, group)
        if ended is not None:
            raise ended
        return endpoints

    def group(self, tx: Transaction, group_id: bytes) -> Group | None:
        """The group with this id as this transaction sees it.

        One that another transaction has locked is there, though nothing be in it (any more): it may
        be about to begin a dialog there, and who names it waits (GRP-9).
        """
        everyone = (*self.endpoints, *tx.begun)
        known = [tx.group_of(one) for one in everyone]
        locked = [group for each in self.open if each is not tx for group in each.locked]
        return next((one for one in (*known, *locked) if one.id == group_id), None)

    def _locked(self, tx: Transaction, group_id: bytes) -> Group:
        for group in tx.locked:
            if group.id == group_id:
                return group
        raise Refused("group_not_found", "invalid_argument", "invalid_state")

    def lock(self, tx: Transaction, group: Group) -> None:
        """Take a group or wait for it (GRP-8, GRP-9)."""
        if group.holder not in (None, tx):
            raise MustWait(group)
        self.take_lock(tx, group)

    def take_lock(self, tx: Transaction, group: Group) -> None:
        """Take a group that is free (GRP-4)."""
        if group.holder is None:
            group.holder = tx
            tx.locked.append(group)
        if tx.age is None:
            self._ages += 1
            tx.age = self._ages

    _ages = 0
    open: list[Transaction]

    def _check_state(self, tx: Transaction, endpoint: Endpoint, allowed: tuple[str, ...]) -> None:
        state = tx.state_of(endpoint)
        if state == GONE:
            raise Refused(*_NO_LONGER)
        if state not in allowed:
            raise Refused("invalid_state")
