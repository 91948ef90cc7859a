"""Unsealing: opens secured items, and drops what is not authentic, before anything else (SEC-29).

Reads: items that arrived, the keys of their dialogs.      Calls: peers.dialog_security, counters.
Never: answers what is not authentic (SEC-25), or lets a plain item pass for a secured one (SEC-20).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import astuple

from brokerd.broker.state import Live
from brokerd.delivery.incoming.counters import PLAIN_ON_SECURED, ArrivalCounters
from brokerd.delivery.incoming.dialogs import ArrivingDialog
from brokerd.delivery.peers.dialog_security import DialogSecurity, UnknownCertificate
from brokerd.ids import InstanceId
from brokerd.protocol.frames import (
    BODY_AT,
    AckOnly,
    BrokerErrorItem,
    Fragment,
    Item,
    SecuredAck,
    SecuredError,
    SecuredFragment,
    ack_header,
    dialog_header,
    error_header,
    read_error,
)
from brokerd.routing.reasons import Reason
from brokerd.security.kept_keys import DialogKeys
from brokerd.security.sealing import AnswerKeys, NotAuthentic

SECURITY_CONTEXT = "security_context"
"""Reason for items dropped because they are not authentic, or their keys unknown (NBT-5)."""
_PLAIN = frozenset({Fragment, AckOnly, BrokerErrorItem})
_ON_PLAIN, _ON_SECURED, _NOT_AUTHENTIC = 11231, 11232, 11229
"""Service Broker's numbers: a secured item of a plain dialog, a plain one of a secured dialog, one
whose security context cannot be recovered."""


class Unsealing:
    """The opener of secured items, which has the last word on what belongs to a dialog."""

    __slots__ = ("_counters", "_security")

    def __init__(self, *, security: DialogSecurity, counters: ArrivalCounters) -> None:
        self._security = security
        self._counters = counters

    def open(
        self, one: ArrivingDialog, item: Item, neighbour: InstanceId | None
    ) -> Fragment | AckOnly | BrokerErrorItem | None:
        """Return an item in plain form, if it is authentic as far as its dialog demands.

        None: it was dropped and reported."""
        live = one.live
        is_secured = one.keys is not None if live is None else live.endpoint.security is not None
        if type(item) in _PLAIN:
            if is_secured:
                self._counters.not_of_its_kind(item, PLAIN_ON_SECURED, _ON_SECURED)
                return None
            assert not isinstance(item, SecuredError)
            return item
        if live is not None and not is_secured:
            self._counters.not_of_its_kind(item, "secured_on_plain", _ON_PLAIN)
            return None
        try:
            return self._opened(one, live, item)
        except UnknownCertificate as unknown:
            self._refuse(item, neighbour, str(unknown))
        except NotAuthentic as error:
            self._refuse(item, neighbour, "", str(error))
        return None

    def open_early(self, one: ArrivingDialog | None, item: Fragment) -> Fragment | None:
        """Return a sealed fragment of a dialog whose keys are in memory, in plain form.

        None: the general path has to open it."""
        live = None if one is None or one.loading or not one.is_for(item) else one.live
        if type(item) is not SecuredFragment or live is None or live.keys is None or live.gone:
            return None
        try:
            return _open_fragment(live.keys, item)
        except NotAuthentic:
            return None

    def _opened(
        self, one: ArrivingDialog, live: Live | None, item: Item
    ) -> Fragment | AckOnly | BrokerErrorItem | None:
        keys: AnswerKeys | None
        if live is not None:
            keys = self._security.load(live)
        elif not item.from_initiator:
            keys = one.keys or self._answer_keys(one, item)
        elif one.keys is not None:
            keys = one.keys
        elif not isinstance(item, SecuredFragment):
            return None  # without an endpoint nothing comes of it, as of a plain one
        elif not item.security:
            self._counters.drop((item,), "unknown_conversation")  # its header may be under way
            return None
        else:
            keys = self._security.accept(one.broker, item)
        if keys is None:
            self._counters.drop((item,), Reason.NO_MASTER_KEY)
            return None
        opened = _open(keys, item)
        if live is None:
            one.keys = keys
        return opened

    def _answer_keys(self, one: ArrivingDialog, item: Item) -> AnswerKeys | None:
        """Return the keys under which an item for a forgotten initiator is authentic.

        Another than the first only if the master key was rotated since the dialog began (SEC-72).
        None: this side has no master key."""
        known = self._security.answer_keys(one.broker, item.conversation_id)
        for keys in known[1:] and known:
            with suppress(NotAuthentic):
                _open(keys, item)
                return keys
        return known[0] if known else None

    def _refuse(
        self, item: Item, neighbour: InstanceId | None, certificate: str, problem: str = ""
    ) -> None:
        self._counters.not_authentic(
            item, SECURITY_CONTEXT, neighbour, certificate, problem=problem, ssb_code=_NOT_AUTHENTIC
        )


def _open(keys: AnswerKeys, item: Item) -> Fragment | AckOnly | BrokerErrorItem | None:
    if isinstance(item, SecuredFragment):
        if isinstance(keys, DialogKeys):
            return _open_fragment(keys, item)
        return _only_header(keys, item)
    if isinstance(item, SecuredAck):
        keys.verify(ack_header(item, item.ack), item.ack_code)
        return AckOnly(
            item.conversation_id,
            item.from_initiator,
            item.from_service,
            item.to_service,
            item.from_broker,
            item.ack,
            item.hop,
        )
    assert isinstance(item, SecuredError)
    return read_error(item, keys.open_error(error_header(item), item.sealed))


def _open_fragment(keys: DialogKeys, item: SecuredFragment) -> Fragment:
    ack, key_id, fields = item.ack, item.key_id, astuple(item)
    header = dialog_header(fields, key_id)
    body = keys.open(key_id, header, item.sequence, item.fragment, item.body)
    if ack is not None:
        keys.verify_carried(ack, item.ack_code, partial(ack_header, item, ack))
    return _plain(fields, body)


def _only_header(keys: AnswerKeys, item: SecuredFragment) -> Fragment:
    """Return a fragment for a dialog that this initiator has forgotten, with its key of bodies.

    The target's acknowledgement in it proves enough to answer that the dialog is gone."""
    if item.ack is None:
        raise NotAuthentic
    keys.verify(ack_header(item, item.ack), item.ack_code)
    return _plain(astuple(item), b"")


def _plain(fields: tuple[Any, ...], body: bytes) -> Fragment:
    plain = (*fields[:BODY_AT], body)
    return Fragment(*plain)
