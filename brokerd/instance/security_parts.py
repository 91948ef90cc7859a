"""Security parts: makes the parts that keep credentials, keys, grants and the audit.

Reads:  settings.      Calls: the constructors of those parts.
Never:  starts or waits for anything; `Assembly` calls this.
"""

from functools import partial

from brokerd.admin.audited import Performed, begun, performed
from brokerd.admin.certificate_exchange import Around, CertificateExchange
from brokerd.admin.credential_store import CredentialStore
from brokerd.admin.grants import GrantAdministration
from brokerd.admin.key_rotation import KeyRotation
from brokerd.admin.principals import PrincipalAdministration
from brokerd.broker.broker import Broker
from brokerd.config.settings import Settings
from brokerd.delivery.incoming.admission import Admission
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.ids import secret_bytes
from brokerd.instance import part_options
from brokerd.instance.authority_files import AuthorityFiles
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.maintenance.audit_trail import AuditTrail
from brokerd.maintenance.certificate_expiry import CertificateExpiry
from brokerd.protocol import client_verbs as wire
from brokerd.sessions.principals import names_of, unknown_users
from brokerd.storage.files.private_files import why_unreachable
from brokerd.telemetry.audit import Outcome


def build_credentials(parts: Parts, settings: Settings, world: Surroundings) -> None:
    """Build the audit, the store of principals and certificates, and the grants."""
    parts.audit = AuditTrail(clock=world.clock, spawn=parts.tasks.spawn)
    parts.credential_store = CredentialStore(
        instance=settings.instance.name,
        data_dir=settings.instance.data_dir,
        clock=world.clock,
        random=world.keys,
        aside=world.executor.call,
        log=parts.log,
    )
    parts.credentials = parts.credential_store.credentials
    parts.authority = AuthorityFiles(settings.ca, parts.log)
    parts.key_rotation = KeyRotation(
        credentials=parts.credential_store,
        data_dir=settings.instance.data_dir,
        brokers=parts.brokers,
        random=world.keys,
        owners=parts.mirroring.master_keys,
        absent=lambda: parts.absent_brokers.reasons,
        aside=world.executor.call,
        clock=world.clock,
        log=parts.log,
        fault=world.fault,
    )
    parts.certificate_expiry = CertificateExpiry(
        credentials=parts.credentials,
        clock=world.clock,
        log=parts.log,
        of_authority=parts.authority.certificate,
    )
    parts.grants = part_options.grants(settings)


def build_certificate_exchange(parts: Parts, settings: Settings, world: Surroundings) -> None:
    """Build the exchange of next certificates with peers."""
    destinations, endpoint = parts.destinations, settings.endpoint
    parts.certificate_exchange = CertificateExchange(
        store=parts.credential_store,
        instance_id=lambda: parts.instance_id,
        around=Around(
            neighbours=destinations.neighbours,
            identity_of=destinations.identity_of,
            own_certificate_to=destinations.own_certificate_to,
            show=destinations.show_certificates,
            answer=destinations.show_certificates,
            connect=destinations.notify,
        ),
        accepts=endpoint is None or endpoint.accept_rotation,
        clock=world.clock,
        spawn=parts.tasks.spawn,
        log=parts.log,
    )
    parts.credentials.watch(parts.certificate_exchange.changed)
    parts.authority.watch(destinations.verify_again)


def admission(parts: Parts) -> Admission:
    """Return the gate for dialogs that other instances begin."""
    return Admission(may_send=parts.grants.may_deliver, audit=parts.audit, log=parts.log)


def grant_administration(
    parts: Parts, settings: Settings, world: Surroundings
) -> GrantAdministration:
    """Return the verbs for grants; a grant ends with the principal that it was made for."""
    principals = parts.credentials.principals
    parts.credentials.watch(lambda: parts.grants.keep_of(principals))
    return GrantAdministration(
        grants=parts.grants,
        brokers=parts.brokers,
        principals=principals,
        unknown_users=unknown_users,
        names_of=names_of,
        has_endpoint=settings.endpoint is not None,
        why_unreachable=partial(why_unreachable, settings.client_socket),
        clock=world.clock,
        log=parts.log,
    )


def principal_administration(parts: Parts, world: Surroundings) -> PrincipalAdministration:
    """Return the verbs for peers, clients and certificates."""
    return PrincipalAdministration(
        store=parts.credential_store,
        exchange=parts.certificate_exchange,
        rotation=parts.key_rotation,
        is_vouched_for=parts.authority.has_rule,
        clock=world.clock,
    )


async def administer(parts: Parts, broker: Broker, verb: wire.Verb, actor: str) -> object:
    """Perform a verb of administration, and record it in the audit before it is answered."""
    if (entry := begun(verb, broker.name)) is not None:
        await _record(parts, entry, actor)
    answer = await parts.administration.run(broker, verb, actor)
    if (entry := performed(verb, broker.name, answer)) is not None:
        await _record(parts, entry, actor)
    return answer


async def _record(parts: Parts, entry: Performed, actor: str) -> None:
    parts.audit.record(
        entry.action,
        actor=actor,
        subject=entry.subject,
        outcome=Outcome.SUCCESS,
        **entry.detail,
    )
    await parts.audit.finish()


def build_dialog_security(parts: Parts, world: Surroundings) -> DialogSecurity:
    """Build the keys of dialogs, which need those of the instance."""
    store = parts.credential_store
    return DialogSecurity(
        credentials=parts.credentials,
        master_key=lambda: store.master_key,
        private_key=store.private_key,
        is_foreign=parts.key_rotation.is_foreign,
        clock=world.clock,
        random=world.keys or secret_bytes,
        binding_for=lambda broker, service: parts.brokers[broker].store.catalog.binding_of.get(
            service
        ),
    )
