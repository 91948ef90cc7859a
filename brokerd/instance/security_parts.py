"""Security parts: makes the parts that keep credentials, keys and the audit.

Reads:  settings.      Calls: the constructors of those parts.
Never:  starts or waits for anything; `Assembly` calls this.
"""

from brokerd.admin.credential_store import CredentialStore
from brokerd.config.settings import Settings
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.maintenance.audit_trail import AuditTrail
from brokerd.maintenance.certificate_expiry import CertificateExpiry


def build_credentials(parts: Parts, settings: Settings, world: Surroundings) -> None:
    """Build the audit, and the store of principals and certificates."""
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
    parts.certificate_expiry = CertificateExpiry(
        credentials=parts.credentials, clock=world.clock, log=parts.log
    )
