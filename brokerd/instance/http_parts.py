"""HTTP parts: makes the HTTP listener, and connects it with the instance once its stores are open.

Reads:  the settings.      Calls: `brokerd.http`, imported only where the daemon listens for HTTP:
        it loads a server, which embedded brokers and programs do not need.
Never:  starts or stops the listener (instance.py does).
"""

from typing import TYPE_CHECKING

from brokerd.admin.metrics_totals import Scrape
from brokerd.config.settings import Settings
from brokerd.ids import secret_bytes
from brokerd.instance.client_logins import ClientLogins, Refusals
from brokerd.instance.local_clients import LocalClients
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings

if TYPE_CHECKING:
    from brokerd.http.listener import HttpConnection, HttpListener
    from brokerd.security.secure_stream import SecureStream


def build_listener(
    parts: Parts, settings: Settings, world: Surroundings, version: str
) -> "HttpListener | None":
    """Return the HTTP listener of the settings; None = the daemon does not listen for HTTP."""
    if not world.serves_http or not settings.http_address:
        return None
    from brokerd.http.listener import HttpListener, refusal  # noqa: PLC0415  # see above
    from brokerd.http.reads import Reads  # noqa: PLC0415

    reads = Reads(
        instance=settings.instance.name,
        version=version,
        condition=lambda: parts.tasks.condition,
        clock=world.clock,
    )
    logins = ClientLogins(
        parts,
        world,
        kind="http",
        refusals=Refusals(
            not_encrypted=refusal(400, "Bad Request", "this listener speaks TLS: https://"),
            not_known=refusal(
                403, "Forbidden", "show a certificate that `brokerd client add` has installed"
            ),
        ),
    )

    def secured(connection: "HttpConnection") -> "SecureStream":
        return logins.secure(connection)

    return HttpListener(
        settings=settings.http,
        address=settings.http_address,
        reads=reads,
        network=world.network,
        clock=world.clock,
        random=world.keys or secret_bytes,
        boot_id=world.boot_id,
        log=world.log,
        secured=secured if settings.http.tls else None,
    )


def connect_listener(
    listener: "HttpListener | None",
    parts: Parts,
    settings: Settings,
    world: Surroundings,
    clients: LocalClients,
) -> None:
    """Let the listener answer: the stores are open, and the parts are made."""
    if listener is None:
        return
    from brokerd.http.reads import Sources  # noqa: PLC0415

    listener.reads.sources = Sources(
        brokers=parts.brokers,
        principals=parts.sessions.principals,
        state=parts.state,
        surveys=parts.surveys,
        doctor=parts.own_doctor,
        audit=parts.audit,
        scrape=Scrape(
            brokers=parts.brokers,
            destinations=parts.destinations.known,
            figures=parts.figures,
            state=parts.state,
            delayed=parts.transmitter.delayed_count,
            trouble=parts.readers.trouble,
            clock=world.clock,
            most=settings.http.metrics_series,
        ),
        open_session=clients.open_session,
    )
    parts.sessions.open_page = listener.open_page
