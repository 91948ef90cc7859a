"""Dialog security of one instance: the keys of its dialogs, made, loaded and handed over (SEC-13).

Reads:  credentials, remote service bindings, endpoints.    Calls: security.
Never:  stores keys (the changeset of the endpoint does), sends or drops anything.
Fails:  without the master key, dialogs that are secured wait, and their arrivals are refused
        silently (SEC-38); all other dialogs go on.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Sender
from brokerd.broker.state import Live
from brokerd.clock import SECOND, Clock, Instant
from brokerd.errors import InvalidArgument, NoMasterKey
from brokerd.ids import BrokerId, ConversationId
from brokerd.protocol.endpoint import DialogEndpoint
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
    pack_error,
)
from brokerd.routing.reasons import Reason
from brokerd.security.bindings import BindingFor
from brokerd.security.certificates import show_id, why_not_valid
from brokerd.security.credentials import Credentials, Installed, Purpose
from brokerd.security.dialog_certificates import (
    DialogCertificate,
    PrivateKeys,
    read_dialog_certificate,
)
from brokerd.security.dialog_kinds import Kind, decide
from brokerd.security.kept_keys import DialogKeys, KeptKeys, unwrap
from brokerd.security.key_agreement import KeyAgreement, Place, read_header
from brokerd.security.master_key import MasterKey
from brokerd.security.sealing import (
    AnswerKeys,
    NotAuthentic,
    Random,
    answers_secret,
    new_secrets,
)

NO_BINDING: Final = -9727
"""Error code: the dialog has to be encrypted, and no binding names its target (SEC-14)."""
NO_CERTIFICATE: Final = -9731
"""Error code: the initiator has to prove itself, and this instance has no certificate (SEC-14)."""
HEADER_AGE: Final = 5 * 60 * SECOND
"""Age at which a security header is made anew; also the tolerated difference of clocks (SEC-11).

A target refuses a header that is older than its replay guard less twice this age. So by the time it
forgets a closed dialog (DLP-55), no header of that dialog can begin it again."""
_ANSWERS: Final = b"answers of dialogs"
_CHOICE_AGE: Final = 60 * SECOND
"""Age at which the certificate of a principal is chosen anew: another may have become valid."""


class SecurityOutcome(Struct, frozen=True):
    """Why a dialog that is about to leave the instance may not leave, or not yet."""

    reason: Reason
    text: str
    code: int | None = None
    """Error code with which the dialog ends; None = it waits."""


class UnknownCertificate(Exception):
    """A security header names a certificate that cannot be used here; the text is its id."""


class DialogSecurity:
    """The keys of the dialogs of one instance."""

    def __init__(
        self,
        *,
        credentials: Credentials,
        master_key: Callable[[], MasterKey | None],
        private_key: Callable[[Installed], bytes],
        is_foreign: Callable[[BrokerId], bool],
        clock: Clock,
        random: Random,
        binding_for: BindingFor,
    ) -> None:
        """Create the keys.

        `master_key`: returns the master key; None = there is none. `private_key`: returns the
        decrypted private keys of an own certificate, or raises `NoMasterKey`. `is_foreign`:
        returns whether another master key encrypts the dialogs of a broker (SEC-73)."""
        self._credentials = credentials
        self._master_key = master_key
        self._private_key = private_key
        self._is_foreign = is_foreign
        self._clock = clock
        self._random = random
        self._agreement = KeyAgreement(random)
        self._broker_keys: dict[BrokerId, tuple[MasterKey, tuple[bytes, ...]]] = {}
        self._derived_from: MasterKey | None = None
        self._own_keys: dict[bytes, PrivateKeys] = {}
        self._parsed: dict[bytes, DialogCertificate] = {}
        self._chosen: dict[str | None, tuple[Instant, Installed]] = {}
        self._binding_for = binding_for
        credentials.watch(self._forget)

    # A dialog is about to leave.

    def begin(
        self, broker: Broker, endpoint: DialogEndpoint
    ) -> DialogKeys | SecurityOutcome | None:
        """Return the keys of a dialog that is about to leave the instance (SEC-14, SEC-17).

        None: it leaves in clear."""
        binding = self._binding_for(broker.name, endpoint.far_service)
        if binding is None and not endpoint.encryption:
            return None
        now = self._clock.utc()
        own = self._choose(None, now)
        kind = decide(
            has_certificate=own is not None, encryption=endpoint.encryption, binding=binding
        )
        if binding is None:
            text = f"no remote service binding of broker {broker.name} is for this service"
            return SecurityOutcome(Reason.NO_BINDING, text, NO_BINDING)
        if kind is None:
            text = "this instance has no valid dialog certificate to prove the initiator with"
            return SecurityOutcome(Reason.NO_CERTIFICATE, text, NO_CERTIFICATE)
        if self._receiver(binding.principal, now) is None:
            return SecurityOutcome(*self._why_no_certificate(binding.principal, now))
        known = self._keys_of_broker(broker.broker_id)
        if known is None or (own is not None and kind is Kind.FULL and self._keys_of(own) is None):
            return SecurityOutcome(Reason.NO_MASTER_KEY, "")
        secrets = new_secrets(known[1][0], endpoint.conversation_id, self._random)
        kept = KeptKeys(kind, secrets, binding.principal)
        return DialogKeys(kept, is_initiator=True, random=self._random)

    def secure(self, live: Live, keys: DialogKeys) -> bytes:
        """Give a dialog its keys; return them wrapped, to be stored in its endpoint."""
        endpoint = live.endpoint
        known = self._keys_of_broker(live.broker_id)
        assert known is not None, "the keys were made with those of the broker"
        live.use_keys(keys)
        return keys.kept.wrap(
            known[0], endpoint.conversation_id, is_initiator=endpoint.is_initiator
        )

    def load(self, live: Sender) -> DialogKeys | None:
        """Return the keys of a dialog; None = it has none, or they cannot be read (SEC-38)."""
        if live.keys is None and live.endpoint.security is not None:
            keys = self._unwrap(live.broker_id, live.endpoint)
            if keys is not None:
                live.use_keys(keys)
        return live.keys

    def _unwrap(self, broker_id: BrokerId, endpoint: DialogEndpoint) -> DialogKeys | None:
        known = self._keys_of_broker(broker_id)
        if known is None or endpoint.security is None:
            return None
        side = endpoint.is_initiator
        try:
            kept = unwrap(endpoint.security, known[0], endpoint.conversation_id, is_initiator=side)
        except NoMasterKey:
            return None
        return DialogKeys(kept, is_initiator=side, random=self._random)

    # Items that leave.

    def seal(self, keys: DialogKeys, item: Fragment, *, with_header: bool) -> SecuredFragment:
        """Return a fragment, sealed; `with_header`: whether the far side may lack the keys."""
        key_id, ack, fields = keys.key_id, item.ack, astuple(item)
        own: tuple[Any, ...] = (
            keys.seal(dialog_header(fields, key_id), item.sequence, item.fragment, item.body),
            key_id,
            b"" if ack is None else keys.authenticate_carried(ack, partial(ack_header, item, ack)),
            self._header(keys, item) if with_header and item.from_initiator else b"",
        )
        return SecuredFragment(*fields[:BODY_AT], *own)

    def seal_answer(self, item: Item, keys: AnswerKeys | None) -> Item:
        """Return an acknowledgement or an error of a dialog as its security demands.

        `keys`: those of the dialog; None = it is not secured."""
        if keys is None:
            return item
        if type(item) is AckOnly:
            return SecuredAck(
                item.conversation_id,
                item.from_initiator,
                item.from_service,
                item.to_service,
                item.from_broker,
                item.ack,
                item.hop,
                keys.authenticate(ack_header(item, item.ack)),
            )
        assert type(item) is BrokerErrorItem
        return SecuredError(
            item.conversation_id,
            item.from_initiator,
            item.from_service,
            item.to_service,
            item.from_broker,
            keys.seal_error(error_header(item), pack_error(item)),
            item.hop,
        )

    def _header(self, keys: DialogKeys, item: Fragment) -> bytes:
        """Return a security header that is recent; b"" = a certificate for it is missing."""
        now = self._clock.utc()
        kept, sender = keys.kept, None
        receiver = self._receiver(kept.principal, now)
        is_for = b"" if receiver is None else receiver.encoded
        # After a rotation the target may have dropped the certificate that the header is for.
        if keys.header and 0 <= now - keys.header_at < HEADER_AGE and keys.header_for == is_for:
            return keys.header
        if kept.kind is Kind.FULL:
            own = self._choose(None, now)
            private = None if own is None else self._keys_of(own)
            if own is None or private is None:
                return b""
            sender = self._certificate(own), private
        if receiver is None:
            return b""
        header = self._agreement.make_header(
            kept.secrets, _place(item), sender=sender, receiver=receiver, now=now
        )
        keys.keep_header(header, now, is_for)
        return header

    # Items that arrive.

    def accept(self, broker: Broker, item: SecuredFragment) -> DialogKeys | None:
        """Return the keys that the initiator of a dialog hands over in a fragment (SEC-24).

        None: this side has no master key.

        Raises:
            NotAuthentic: the header was not made by the named side for this dialog, or is late.
            UnknownCertificate: a certificate that the header names cannot be used here.
        """
        header = read_header(item.security)
        now = self._clock.utc()
        guard = broker.options.replay_guard // timedelta(microseconds=1)
        life = max(HEADER_AGE, guard - 2 * HEADER_AGE)
        if not -HEADER_AGE <= now - header.made_at <= life:
            age = (now - header.made_at) // SECOND
            raise NotAuthentic(f"made {age} s ago: played again, or the clocks differ")
        receiver = self._usable(header.receiver, is_own=True, now=now)
        private, sender, principal = self._keys_of(receiver), None, ""
        if private is None or self._keys_of_broker(broker.broker_id) is None:
            return None
        if header.sender:
            installed = self._usable(header.sender, is_own=False, now=now)
            sender, principal = self._certificate(installed), installed.principal or ""
        secrets = self._agreement.read_secrets(header, _place(item), sender=sender, keys=private)
        kind = Kind.ANONYMOUS if header.is_anonymous else Kind.FULL
        kept = KeptKeys(kind, secrets, principal)
        return DialogKeys(kept, is_initiator=False, random=self._random)

    def answer_keys(self, broker: Broker, conversation_id: ConversationId) -> list[AnswerKeys]:
        """Return the keys for answers of a dialog that a broker began and has no more.

        Several: one for each master key under which it may have begun (SEC-72). None: this side has
        no master key."""
        known = self._keys_of_broker(broker.broker_id)
        if known is None:
            return []
        secrets = (answers_secret(one, conversation_id) for one in known[1])
        return [AnswerKeys(one, is_initiator=True, random=self._random) for one in secrets]

    def stored_keys(self, broker: Broker, endpoint: DialogEndpoint) -> DialogKeys | None:
        """Return the keys of an endpoint that may not be in memory; None = it is not secured."""
        return self._unwrap(broker.broker_id, endpoint)

    def _usable(self, certificate_id: bytes, *, is_own: bool, now: Instant) -> Installed:
        """Return a certificate that a header names, active or not (SEC-23, SEC-40).

        Raises:
            UnknownCertificate: it is not installed for this use, or not valid now.
        """
        found = self._credentials.certificates.get(certificate_id)
        if (
            found is None
            or found.purpose is not Purpose.DIALOG
            or (found.principal is None) is not is_own
            or why_not_valid(found.certificate, now)
        ):
            raise UnknownCertificate(show_id(certificate_id))
        return found

    # Certificates and keys of this instance.

    def _receiver(self, principal: str, now: Instant) -> DialogCertificate | None:
        found = self._choose(principal, now)
        return None if found is None else self._certificate(found)

    def _choose(self, principal: str | None, now: Instant) -> Installed | None:
        """Return the certificate with which dialogs begin (SEC-21, SEC-22); None = none is valid.

        `principal`: the owner; None = this instance."""
        known = self._chosen.get(principal)
        if (
            known is not None
            and 0 <= now - known[0] < _CHOICE_AGE
            and now <= known[1].certificate.not_after
        ):
            return known[1]
        if principal is None:
            found = self._credentials.own(Purpose.DIALOG, now)
        else:
            found = self._credentials.of_principal(principal, Purpose.DIALOG, now)
        if found is not None:
            self._chosen[principal] = now, found
        return found

    def _why_no_certificate(self, principal: str, now: Instant) -> tuple[Reason, str]:
        """Return why a principal has no certificate to begin a dialog with (SEC-22)."""
        owned = [
            one for one in self._credentials.owned_by(principal) if one.purpose is Purpose.DIALOG
        ]
        if not owned:
            return Reason.NO_CERTIFICATE, f"no dialog certificate of {principal} is installed"
        active = [one for one in owned if one.is_active]
        if not active:
            return Reason.CERT_INACTIVE, f"of {principal}"
        latest = max(active, key=lambda one: one.certificate.not_after).certificate
        is_over = now > latest.not_after
        return (
            Reason.CERT_EXPIRED if is_over else Reason.CERT_NOT_YET_VALID,
            why_not_valid(latest, now),
        )

    def _certificate(self, installed: Installed) -> DialogCertificate:
        encoded = installed.certificate.encoded
        parsed = self._parsed.get(encoded)
        if parsed is None:
            parsed = self._parsed[encoded] = read_dialog_certificate(encoded)
        return parsed

    def _keys_of(self, own: Installed) -> PrivateKeys | None:
        keys = self._own_keys.get(own.certificate.id)
        if keys is None:
            try:
                keys = PrivateKeys(self._private_key(own))
            except (NoMasterKey, InvalidArgument):
                return None
            self._own_keys[own.certificate.id] = keys
        return keys

    def _keys_of_broker(self, broker_id: BrokerId) -> tuple[MasterKey, tuple[bytes, ...]] | None:
        """Return the key of a broker, and its secrets for answers; None = no master key."""
        master = self._master_key()
        if master is not self._derived_from:
            self._broker_keys.clear()
            self._derived_from = master
        if master is None or self._is_foreign(broker_id):
            return None
        known = self._broker_keys.get(broker_id)
        if known is None:
            key = master.for_broker(broker_id)
            known = self._broker_keys[broker_id] = key, key.secrets_for(_ANSWERS)
        return known

    def _forget(self) -> None:
        """Forget what was parsed of certificates that have gone."""
        self._own_keys.clear()
        self._parsed.clear()
        self._chosen.clear()


def _place(item: Fragment) -> Place:
    return Place(
        item.conversation_id,
        item.from_service,
        item.to_service,
        item.from_broker,
        item.contract,
    )
