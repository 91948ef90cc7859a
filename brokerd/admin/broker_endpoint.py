"""Administration of the broker endpoint: show, switch and alter it online (END-4 to END-9).

Reads:  the settings it was made with.      Calls: transport; routing and forwarding by a callback.
Never:  makes a change part of a transaction (END-7), or keeps a change after a restart: each start
        uses the settings file.
A change affects no more than necessary (END-6).
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from brokerd.config.loading import altered_endpoint
from brokerd.config.settings import Encryption, Endpoint, EndpointState
from brokerd.errors import BrokerError, InvalidArgument, ObjectNotFound
from brokerd.protocol.admin_verbs import AlterEndpoint, RetryDestination
from brokerd.routing.address import normalise
from brokerd.security.certificates import show_id
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION
from brokerd.transport.destinations import Destinations

Row = dict[str, object]
NAME = "broker_endpoint"
"""The fixed name of the endpoint: an instance has at most one (END-1)."""


class EndpointAdministration:
    """Performer of `alter_endpoint` and `retry_destination`; source of view `endpoint` (MON-5)."""

    def __init__(
        self,
        *,
        settings: Endpoint | None,
        allow_plaintext: bool,
        destinations: Destinations,
        forwarding_changed: Callable[[Endpoint], None],
        forward_bytes_used: Callable[[], int],
        moved: Callable[[], None],
        secured: Callable[[Endpoint], None],
        log: Log,
    ) -> None:
        self._settings = settings
        self._allow_plaintext = allow_plaintext
        self._destinations = destinations
        self._forwarding_changed = forwarding_changed
        self._forward_bytes_used = forward_bytes_used
        self._moved = moved
        self._secured = secured
        self._log = log
        self._altering = asyncio.Lock()

    def rows(self) -> list[Row]:
        """Return the row of the endpoint; empty if the instance has none (END-1)."""
        settings, endpoint = self._settings, self._destinations.endpoint
        if settings is None:
            return []
        open_at = [one.address or one.wanted for one in endpoint.listeners]
        return [
            {
                "name": NAME,
                "state": str(endpoint.state).upper(),
                "port": endpoint.port or settings.port,
                "listener_address": open_at,
                "is_message_forwarding_enabled": settings.forwarding,
                "message_forwarding_size": settings.forward_size_mb,
                "connection_auth": str(settings.authentication),
                "certificate_id": self._certificate_id(),
                "encryption": str(settings.encryption),
                "encryption_algorithm": "NONE" if self._is_plain(settings) else "TLS 1.3",
                "drain": settings.drain.total_seconds(),
                "is_listening": any(one.is_open for one in endpoint.listeners),
                "listen_error": endpoint.listen_error or self._why_no_tls(),
                "forward_bytes_used": self._forward_bytes_used(),
            }
        ]

    async def run(self, verb: AlterEndpoint | RetryDestination, actor: str) -> Row:
        """Perform a verb and return its answer."""
        match verb:
            case AlterEndpoint(said):
                return await self.alter(said, actor)
            case RetryDestination(address):
                return self.retry(address, actor)

    async def alter(self, said: Mapping[str, object], actor: str) -> Row:
        """Change the given values and no others; return the resulting row.

        The state is changed last, after the addresses. Raises `InvalidArgument` if the instance
        has no endpoint, or a value is not allowed.
        """
        # One alteration at a time: each starts from the settings as the previous one left them. The
        # state comes last, so that an endpoint that is started listens at its new addresses.
        async with self._altering:
            before = self._there()
            after = altered_endpoint(before, said, allow_plaintext=self._allow_plaintext)
            self._settings = after
            self._destinations.drain = after.drain
            if after.addresses != before.addresses:
                await self._destinations.rebind(after.addresses)
                self._moved()
            security = (after.encryption, after.authentication)
            if security != (before.encryption, before.authentication):
                await self._destinations.secure(*security)
                self._secured(after)
            if (after.forwarding, after.forward_size_mb) != (
                before.forwarding,
                before.forward_size_mb,
            ):
                self._forwarding_changed(after)
            if after.state is not self._destinations.endpoint.state:
                await self._destinations.switch(after.state)
                self._moved()
            self._log.info(
                ADMINISTRATION,
                subclass="alter_endpoint",
                by=actor,
                before=_changed(before, after),
                after=_changed(after, before),
                listen_error=self._destinations.endpoint.listen_error or None,
            )
            return self.rows()[0]

    def retry(self, address: str | None, actor: str) -> Row:
        """Clear suppression and connect now, to one destination or to all destinations (NBT-8).

        Raises `InvalidArgument` if the instance has no endpoint, or it is not started, and
        `ObjectNotFound` if nothing was ever sent to the address.
        """
        self._there()
        endpoint = self._destinations.endpoint
        if endpoint.state is not EndpointState.STARTED or not endpoint.listeners:
            raise InvalidArgument(
                f"nothing can be tried: {endpoint.why_unavailable}",
                hint="start it with: brokerd endpoint start",
            )
        wanted = None if address is None else normalise(address)
        known = {one.address for one in self._destinations.known()}
        if wanted is not None and wanted not in known:
            raise ObjectNotFound(
                f"{address!r} is no destination of this instance",
                hint=f"there is: {', '.join(sorted(known))}" if known else "there is none yet",
            )
        tried = self._destinations.retry(wanted)
        self._log.info(
            ADMINISTRATION, subclass="retry_destination", by=actor, address=wanted, count=tried
        )
        return {"destinations": tried}

    @staticmethod
    def _is_plain(settings: Endpoint) -> bool:
        return settings.encryption is Encryption.DISABLED

    def _certificate_id(self) -> str | None:
        """Return the certificate that new connections show; None = none is valid, or needed."""
        guard = self._destinations.peers.guard
        if guard is None or guard.encryption is Encryption.DISABLED:
            return None
        own = guard.contexts.own_certificate
        return None if own is None else show_id(own.id)

    def _why_no_tls(self) -> str:
        """Return why no connection can be encrypted; empty = each can be, or need not (SEC-5)."""
        guard = self._destinations.peers.guard
        if guard is None or guard.encryption is Encryption.DISABLED:
            return ""
        try:
            guard.contexts.server()
        except BrokerError as error:
            return f"{error.message}; {error.hint}" if error.hint else error.message
        return ""

    def _there(self) -> Endpoint:
        if self._settings is None:
            raise InvalidArgument(
                "this instance has no broker endpoint",
                hint="write an [endpoint] section into its settings, and start it again",
            )
        return msgspec.structs.replace(self._settings, state=self._destinations.endpoint.state)


def _changed(one: Endpoint, other: Endpoint) -> dict[str, str]:
    """Return the values of `one` that differ in `other`, for the log."""
    return {
        key: str(getattr(one, key))
        for key in one.__struct_fields__
        if getattr(one, key) != getattr(other, key)
    }
