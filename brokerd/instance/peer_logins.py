"""PeerLogins: who may log in as a peer, and the record of logins (SEC-6, SEC-12, SEC-55).

Reads:  the grants.     Calls: the store of credentials, the audit, the log.
Never:  decides who a peer is: `transport.login_guard` does.
"""

from brokerd.config.settings import Authentication, Encryption, Endpoint, Settings
from brokerd.errors import BrokerError
from brokerd.ids import InstanceId, show
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.protocol.connection_effects import LoginOutcome
from brokerd.security.certificates import show_id
from brokerd.security.credentials import Kind
from brokerd.security.tls import Contexts
from brokerd.telemetry.audit import Action, Outcome
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import AUDIT_LOGIN
from brokerd.transport.login_guard import Login, LoginGuard


class PeerLogins:
    """The answers and records of one instance."""

    def __init__(self, parts: Parts, log: Log) -> None:
        self._parts = parts
        self._log = log
        self._first: dict[str, InstanceId] = {}
        """Instances of first logins that are not stored yet."""

    def may_connect(self, name: str) -> bool:
        """Return whether a principal has CONNECT on the endpoint (SEC-6)."""
        return self._parts.grants.may_connect(name)

    def first_login(self, name: str, instance_id: InstanceId) -> bool:
        """Record the instance of a principal; False = another login came first (SEC-55)."""
        known = self._first.setdefault(name, instance_id)
        others = (one for other, one in self._first.items() if other != name)
        if known != instance_id or instance_id in others:
            return False
        self._parts.tasks.spawn(self._bind(name, instance_id))
        return True

    def logged_in(self, login: Login) -> None:
        """Log and audit a login that has succeeded or failed (SEC-12)."""
        is_success = login.outcome is LoginOutcome.SUCCESS
        is_known = login.identity.is_authenticated
        certificate = login.identity.certificate_id
        instance = None if login.instance_id is None else show(login.instance_id)
        shown = None if certificate is None else show_id(certificate)
        (self._log.info if is_success else self._log.warning)(
            AUDIT_LOGIN,
            subclass=login.outcome.value,
            principal=login.identity.name,
            certificate_id=shown,
            remote=login.remote,
            peer=instance,
            is_accept=login.is_accept,
            error=login.detail or None,
        )
        self._parts.audit.record(
            Action.LOGIN,
            actor=login.identity.name if is_known else _host(login.remote),
            subject="endpoint" if login.is_accept else login.remote,
            outcome=Outcome.SUCCESS if is_success else Outcome.REFUSED,
            kind=login.outcome.value,
            remote=login.remote,
            instance=instance,
            certificate_id=shown,
            why=login.detail or None,
        )

    async def _bind(self, name: str, instance_id: InstanceId) -> None:
        try:
            await self._parts.credential_store.bind_instance(name, instance_id, actor=name)
        except BrokerError as error:
            self._log.warning(
                AUDIT_LOGIN,
                subclass=LoginOutcome.AUTHENTICATION_FAILURE.value,
                principal=name,
                peer=show(instance_id),
                error=error.message,
            )
        finally:
            self._first.pop(name, None)
            self._parts.destinations.check_identities()


def _host(remote: str) -> str:
    """Return an address without its port, so that repeats of one machine are counted together."""
    return remote.rpartition(":")[0]


def secured(parts: Parts, endpoint: Endpoint) -> None:
    """Note that the endpoint authenticates peers in another way from now on (END-6)."""
    parts.grants.authenticates = endpoint.authentication is not Authentication.NONE


def login_guard(parts: Parts, settings: Settings, world: Surroundings) -> LoginGuard | None:
    """Return the guard of the logins of peers; None = there is no endpoint (END-1)."""
    endpoint = settings.endpoint
    if endpoint is None:
        return None
    return LoginGuard(
        instance_id=parts.instance_id,
        credentials=parts.credentials,
        contexts=Contexts(
            credentials=parts.credentials,
            kind=Kind.PEER,
            private_key=parts.credential_store.private_key,
            utc=world.clock.utc,
            authority=parts.authority.vouching_for(Kind.PEER),
        ),
        events=PeerLogins(parts, parts.log),
        encryption=Encryption(endpoint.encryption),
        authentication=Authentication(endpoint.authentication),
    )
