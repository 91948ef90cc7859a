"""Grants: the verbs that say who may do what (CLP-140 to CLP-142).

Reads:  arguments.     Calls: client.link.
Never:  takes part in a transaction: each call stands alone, and is audited by the daemon.
"""

from typing import TYPE_CHECKING

import msgspec

from brokerd.client.arguments import wire_text
from brokerd.clock import Instant

if TYPE_CHECKING:
    from brokerd.client.link import Link


class GrantRow(msgspec.Struct, frozen=True):
    """One permission of one principal."""

    permission: str
    """connect, send, receive, control or execute."""
    securable: str
    """The object that it is on; `*` and `?` are wildcards."""
    principal: str
    """A user, `client:NAME`, `peer:NAME` or `public`."""
    origin: str
    """`settings`, or `online` for what was granted while a daemon ran."""
    granted_at: Instant | None = None
    granted_by: str = ""

    def __str__(self) -> str:
        return f"{self.permission} on {self.securable} to {self.principal}"


class Granted(GrantRow, frozen=True):
    """A permission that was granted or revoked."""

    is_new: bool = False
    """Whether the call has granted it; False = it was granted before, or is now revoked."""
    notes: tuple[str, ...] = ()
    """Remarks for an operator, for instance about an object that does not exist."""


class WhoCanAnswer(msgspec.Struct, frozen=True):
    """The grants of an object or of a principal."""

    grants: tuple[GrantRow, ...]
    notes: tuple[str, ...] = ()


class GrantVerbs:
    """The verbs for permissions, a part of `session.admin`."""

    _link: "Link"

    async def grant(self, grant: str) -> Granted:
        """Grant a permission, effective at once, and durable on return.

        `grant`: a text such as `send on urn:orders to peer:west`. Permissions: connect on
        `endpoint`; send on a service; receive on `BROKER/QUEUE`; control and execute on a broker.

        Raises:
            InvalidArgument: the text has another form.
            ObjectNotFound: it is for a peer or client without an installed certificate.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("grant", (wire_text(grant, "grant"),))
        return msgspec.convert(answer, Granted)

    async def revoke(self, grant: str) -> Granted:
        """Take a permission back, also on open connections; durable on return.

        Open transactions of clients that lose it are rolled back. `grant`: the text with which it
        was granted.

        Raises:
            InvalidArgument: the text has another form, or the grant stands in the settings.
            ObjectNotFound: this was not granted.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("revoke", (wire_text(grant, "grant"),))
        return msgspec.convert(answer, Granted)

    async def who_can(
        self,
        permission: str | None = None,
        securable: str | None = None,
        *,
        principal: str | None = None,
    ) -> WhoCanAnswer:
        """Return the grants of one object, of one principal, or without arguments all.

        `permission` and `securable`: as in a grant; `securable` is the name of an object, without
        wildcards. `principal`: a user, `client:NAME`, `peer:NAME` or `public`.

        Raises:
            InvalidArgument: there is no such permission, or it is not granted on such an object.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("who_can", (permission, securable, principal))
        return msgspec.convert(answer, WhoCanAnswer)
