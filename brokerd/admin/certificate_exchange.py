"""CertificateExchange: peers learn each other's next certificates over open connections (SEC-64).

Reads:  credentials, the identity of a connection.      Calls: the credential store, the transport.
Never:  takes a certificate from a neighbour that has not logged in with one of the same principal,
        or gives a principal a right.
Wakes:  when a neighbour comes ONLINE, when the own certificates change, when a list arrives.
Fails:  a list that cannot be stored is shown again at the next connection; so nothing is repeated.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final

import msgspec

from brokerd.admin.credential_store import CredentialStore
from brokerd.clock import Clock
from brokerd.errors import BrokerError, InvalidArgument, NoMasterKey
from brokerd.ids import InstanceId
from brokerd.protocol.certificate_lists import (
    MOST_BYTES,
    MOST_SHOWN,
    CertificatesHere,
    CertificatesKept,
    Shown,
)
from brokerd.security.certificates import show_id
from brokerd.security.credentials import Installed, Kind, Principal, Purpose
from brokerd.security.rotation import Changes, Ends, Offered, compare, prove, read_offered
from brokerd.security.tls import Identity
from brokerd.storage.rows.credentials import CredentialChange
from brokerd.telemetry.audit import Action, Entry
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CERTIFICATE

NOT_ACCEPTED: Final = (
    "endpoint.accept_rotation is off there: install it by hand with brokerd peer add"
)
EVERY: Final = 10.0
"""Seconds between two changes of the certificates of one peer, once it has made many."""
BURST: Final = 8
"""Changes that a peer may make at once: those of one rotation, and of one that is repeated."""
_OFFLINE: Final = "no connection"
_SILENT: Final = "no answer yet"
_UNABLE: Final = "its version takes no certificates over a connection: install it there by hand"

_FAILED: Final = "it has failed at the list; its log says why"


class Around(msgspec.Struct, frozen=True):
    """The transport, as the exchange uses it."""

    neighbours: Callable[[], Sequence[InstanceId]]
    """Returns the instances that are ONLINE."""
    identity_of: Callable[[InstanceId], Identity | None]
    """Returns the principal at the far end of the connection to an instance."""
    own_certificate_to: Callable[[InstanceId], bytes | None]
    """Returns the id of the certificate that this side has shown on that connection."""
    show: Callable[[InstanceId, CertificatesHere], bool]
    """Sends a list; False = the neighbour is not ONLINE, or knows no such frames."""
    answer: Callable[[InstanceId, CertificatesKept], bool]
    connect: Callable[[str], None]
    """Opens a connection to an address, if there is none."""


class CertificateExchange:
    """The certificates that this instance shows to its neighbours, and takes from them.

    `accepts`: whether certificates of neighbours are installed (`endpoint.accept_rotation`)."""

    def __init__(
        self,
        *,
        store: CredentialStore,
        instance_id: Callable[[], InstanceId],
        around: Around,
        accepts: bool,
        clock: Clock,
        spawn: Callable[[Coroutine[object, object, None]], object],
        log: Log,
    ) -> None:
        self._store = store
        self._instance_id = instance_id
        self._around = around
        self._accepts = accepts
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._shown: tuple[bytes, ...] = ()
        self._answers: dict[str, CertificatesKept] = {}
        """The latest answer of each peer."""
        self._unable: set[str] = set()
        """Peers that know no such frames."""
        self._answered = asyncio.Event()
        self._listed: dict[InstanceId, tuple[list[Offered], CertificatesKept]] = {}
        """The latest list of each neighbour, and the answer to it."""
        self._lists: dict[InstanceId, tuple[Identity, CertificatesHere]] = {}
        """The newest list of each neighbour of which one is being processed."""
        self._next_at: dict[str, float] = {}
        """For each principal, when its changes so far are paid for (monotonic)."""

    # Showing the own certificates.

    def met(self, peer: InstanceId) -> None:
        """Show a neighbour that came ONLINE the own certificates."""
        self._show(peer)

    def changed(self) -> None:
        """Show all neighbours the own certificates, if they have changed."""
        known = self._store.credentials.principals
        for name in [one for one in self._answers if one not in known]:
            del self._answers[name]
        for name in [one for one in self._next_at if one not in known]:
            del self._next_at[name]
        self._answer_again()
        ids = tuple(one.certificate.id for one in self._own())
        if ids == self._shown:
            return
        self._shown = ids
        for peer in self._around.neighbours():
            self._show(peer)

    def _answer_again(self) -> None:
        """Answer the lists of neighbours anew that an administrator has made another answer to."""
        neighbours = self._around.neighbours()
        for peer, (offered, before) in list(self._listed.items()):
            identity = self._around.identity_of(peer)
            if peer not in neighbours or identity is None:
                del self._listed[peer]
                continue
            found = self._compare(identity, offered)
            new = {one.certificate.id for one in found.new}
            kept = tuple(one for one in found.kept if one not in new)
            if kept != before.ids:
                self._answer(peer, offered, CertificatesKept(kept, before.refusal))

    def _answer(self, peer: InstanceId, offered: list[Offered], answer: CertificatesKept) -> None:
        self._listed[peer] = offered, answer
        self._around.answer(peer, answer)

    def _show(self, peer: InstanceId) -> None:
        identity = self._around.identity_of(peer)
        principal = self._principal_of(identity)
        if principal is None or identity is None:
            return
        mine = self._around.own_certificate_to(peer) or b""
        ends = Ends(self._instance_id(), peer, mine, identity.certificate_id or b"")
        try:
            frame = CertificatesHere(tuple(self._proven(ends)))
        except NoMasterKey:
            return
        if not frame.shown or self._around.show(peer, frame):
            self._unable.discard(principal)
        else:
            self._unable.add(principal)

    def _proven(self, ends: Ends) -> Iterable[Shown]:
        for one in self._own():
            proof = prove(one, self._store.private_key(one), ends)
            if proof is not None and len(one.certificate.encoded) <= MOST_BYTES:
                yield Shown(one.purpose.value, one.certificate.encoded, proof)

    def _own(self) -> list[Installed]:
        """Return the certificates to be shown: the newest four of each purpose."""
        found = []
        for purpose in Purpose:
            mine = self._store.credentials.own_all(purpose)
            mine.sort(key=lambda one: one.installed_at, reverse=True)
            found += mine[: MOST_SHOWN // len(Purpose)]
        return found

    # Which peers have them.

    def lacking(self, wanted: Iterable[bytes]) -> dict[str, str]:
        """Return the peers that have not installed all of these certificates, each with why."""
        ids = set(wanted)
        if not ids:
            return {}
        found: dict[str, str] = {}
        online = {
            identity.name
            for one in self._around.neighbours()
            if (identity := self._around.identity_of(one)) is not None
        }
        for name, principal in sorted(self._store.credentials.principals.items()):
            if principal.kind is not Kind.PEER:
                continue
            answer = self._answers.get(name)
            if answer is not None and ids <= set(answer.ids):
                continue
            if name not in online:
                found[name] = _OFFLINE
            elif name in self._unable:
                found[name] = _UNABLE
            else:
                found[name] = _SILENT if answer is None else answer.refusal or _SILENT
        return found

    async def wait(self, wanted: Sequence[bytes], seconds: float) -> dict[str, str]:
        """Wait until all peers have these certificates; return those that lack them.

        Connections are opened to peers whose address is known."""
        lacking = self.lacking(wanted)
        for name in lacking:
            self._connect(self._store.credentials.principals.get(name))
        try:
            async with asyncio.timeout(seconds):
                while lacking:
                    self._answered.clear()
                    await self._answered.wait()
                    lacking = self.lacking(wanted)
        except TimeoutError:
            return self.lacking(wanted)
        return lacking

    def _connect(self, principal: Principal | None) -> None:
        for address in () if principal is None else principal.addresses:
            self._around.connect(address)

    # Frames of neighbours.

    def arrived(self, peer: InstanceId, frame: CertificatesHere | CertificatesKept) -> None:
        """Process a list, or the answer to one, from a neighbour."""
        identity = self._around.identity_of(peer)
        principal = self._principal_of(identity)
        if principal is None or identity is None:
            return
        if isinstance(frame, CertificatesKept):
            self._answers[principal] = frame
            self._answered.set()
        else:
            is_busy = peer in self._lists
            self._lists[peer] = identity, frame  # the newest list is all that counts
            if not is_busy:
                self._spawn(self._install_newest(peer))

    def _principal_of(self, identity: Identity | None) -> str | None:
        """Return the principal that a certificate has proven; None = nobody is known by one now.

        A connection may outlive its certificate by a moment, and a list its connection."""
        if identity is None or identity.certificate_id is None:
            return None
        known = self._store.credentials
        if not identity.by_authority:
            installed = known.certificates.get(identity.certificate_id)
            if installed is None or installed.principal != identity.name:
                return None
        return identity.name if identity.name in known.principals else None

    async def _install_newest(self, peer: InstanceId) -> None:
        """Process the newest list of a neighbour until no newer one has come meanwhile."""
        done = None
        while done is not self._lists[peer]:
            principal = self._lists[peer][0].name
            await self._clock.sleep_until(self._next_at.get(principal, 0.0) - BURST * EVERY)
            done = self._lists[peer]
            await self._install(peer, *done)
        del self._lists[peer]

    def _charge(self, principal: str) -> None:
        """Note a change, so that the next one waits if there were many."""
        now = self._clock.monotonic()
        self._next_at[principal] = max(now, self._next_at.get(principal, now)) + EVERY

    async def _install(self, peer: InstanceId, identity: Identity, frame: CertificatesHere) -> None:
        """Process a list; whatever it has in it fails nothing but this list."""
        try:
            await self._install_list(peer, identity, frame)
        except Exception as error:  # noqa: BLE001  # per list: a task that fails ends the instance
            self._log.error(
                CERTIFICATE, subclass="list_failed", principal=identity.name, exc_info=error
            )
            self._answer(peer, [], CertificatesKept(refusal=_FAILED))

    async def _install_list(
        self, peer: InstanceId, identity: Identity, frame: CertificatesHere
    ) -> None:
        """Install what a list has that is new, remove what it lacks, and answer."""
        refusals: list[str] = []
        mine = self._around.own_certificate_to(peer) or b""
        ends = Ends(peer, self._instance_id(), identity.certificate_id or b"", mine)
        offered = list(self._read(ends, frame, refusals))
        done: list[Changes] = []

        def change() -> CredentialChange:
            found = self._compare(identity, offered)
            done.append(found)
            return self._change_of(identity, found)

        try:
            if _is_change(self._compare(identity, offered)):
                await self._store.change(change)
            else:
                done.append(self._compare(identity, offered))
        except BrokerError as error:
            refusals.append(error.message)
            done = [Changes()]
        found = done[-1]
        if _is_change(found):
            self._charge(identity.name)
            self._log.warning(
                CERTIFICATE,
                subclass="received",
                principal=identity.name,
                installed=[show_id(one.certificate.id) for one in found.new],
                removed=[show_id(one) for one in found.gone],
                hint="if its owner knows nothing of it: brokerd peer revoke "
                + identity.name.partition(":")[2],
            )
        refusal = found.refusal or next(iter(refusals), "")
        self._answer(peer, offered, CertificatesKept(found.kept, refusal))

    def _read(self, ends: Ends, frame: CertificatesHere, refusals: list[str]) -> Iterable[Offered]:
        for one in frame.shown:
            try:
                yield read_offered(Purpose(one.purpose), one.encoded, one.proof, ends)
            except InvalidArgument as error:
                refusals.append(error.message)

    def _compare(self, identity: Identity, offered: list[Offered]) -> Changes:
        """Return what a list changes; nothing if its sender, or the certificate that
        showed it, was removed meanwhile."""
        if self._principal_of(identity) is None:
            return Changes()
        now = self._clock.utc()
        found = compare(
            self._store.credentials, identity.name, identity.certificate_id, offered, now
        )
        if self._accepts or not _is_change(found):
            return found
        new = {one.certificate.id for one in found.new}
        kept = tuple(one for one in found.kept if one not in new)
        return Changes(kept=kept, refusal=NOT_ACCEPTED if new else "")

    def _change_of(self, identity: Identity, found: Changes) -> CredentialChange:
        now = self._clock.utc()
        if not _is_change(found):
            return CredentialChange()
        entry = Entry(
            at=now,
            action=Action.CERTIFICATES_RECEIVED,
            actor=identity.name,
            subject=identity.name,
            detail={
                "installed": [show_id(one.certificate.id) for one in found.new],
                "removed": [show_id(one) for one in found.gone],
                "shown_by": show_id(identity.certificate_id or b""),
            },
        )
        put = tuple(
            Installed(
                certificate=one.certificate,
                purpose=one.purpose,
                principal=identity.name,
                installed_at=now,
            )
            for one in found.new
        )
        return CredentialChange(put=put, removed_certificates=found.gone, entries=(entry,))


def _is_change(found: Changes) -> bool:
    return bool(found.new or found.gone)
