"""The options of each part of an instance, made from the settings. PURE.

Reads:  settings.      Calls: nothing.      Never:  knows a default; the settings have the defaults.
"""

import msgspec

from brokerd.admin.cleanup_and_backup import Upkeep
from brokerd.checking.checker import Limits
from brokerd.config.settings import Authentication, Endpoint, LogLevel, Settings
from brokerd.delivery.forwarding.forwarder import MEGABYTE, ForwarderOptions
from brokerd.delivery.forwarding.report import ReportOptions
from brokerd.delivery.incoming.dispatcher import DispatcherOptions
from brokerd.delivery.outgoing.transmitter import TransmitterOptions
from brokerd.delivery.peers.arrival_routes import ArrivalRouteOptions
from brokerd.delivery.peers.refusal_notices import NoticeOptions
from brokerd.dynamic_routing.requester import RequesterOptions
from brokerd.dynamic_routing.requests import Form
from brokerd.security.grants import Grants, parse_grant
from brokerd.sessions.options import SessionOptions
from brokerd.telemetry.log import Log
from brokerd.transport.options import TransportOptions


def arrival_routes(settings: Settings) -> ArrivalRouteOptions:
    """Return the options of the router's cache of arrival routes."""
    return ArrivalRouteOptions(settings.transmitter.cache_age, settings.transmitter.cache_size)


def check_limits(settings: Settings) -> Limits:
    """Return the limits of body checks."""
    return Limits(time=settings.checks.time, memory=settings.checks.memory)


def grants(settings: Settings) -> Grants:
    """Return the grants of the settings; those of the store are loaded later."""
    endpoint = settings.endpoint
    return Grants(
        map(parse_grant, settings.clients.grants),
        authenticates=endpoint is not None and endpoint.authentication is not Authentication.NONE,
    )


def asking(settings: Settings) -> RequesterOptions:
    """Return the options of dynamic routing."""
    return RequesterOptions(
        lifetime=int(settings.bcn.lifetime.total_seconds()),
        form=Form(settings.bcn.format.value),
        most_open=settings.bcn.most_open,
        failures=settings.bcn.failures,
    )


def transmitter(settings: Settings) -> TransmitterOptions:
    """Return the options of the transmitter."""
    return TransmitterOptions(
        ack_delay=settings.dialog.ack_delay,
        ack_every=settings.dialog.ack_every,
        hops=settings.dialog.hops,
        time_to_live=settings.dialog.time_to_live,
        starvation=settings.transport.starvation,
        error_pause=settings.transmitter.error_pause,
    )


def notices(settings: Settings) -> NoticeOptions:
    """Return the options of NOTICE frames."""
    return NoticeOptions(
        notices=settings.dispatcher.notices, interval=settings.dispatcher.notice_interval
    )


def forwarder(settings: Settings) -> ForwarderOptions:
    """Return the options of the forwarder."""
    endpoint = settings.endpoint or Endpoint()
    return ForwarderOptions(
        forwarding=endpoint.forwarding,
        limit=endpoint.forward_size_mb * MEGABYTE,
        max_age=settings.forwarder.max_age,
        starvation=settings.transport.starvation,
        largest_item=settings.transport.max_frame - 1,
    )


def logs_each_ack(settings: Settings) -> bool:
    """Return whether the log has a line for each acknowledgement (MON-16)."""
    return settings.log.level is LogLevel.DEBUG


def forward_report(settings: Settings) -> ReportOptions:
    """Return the options of the forwarder's log lines."""
    return ReportOptions(
        each=settings.log.level is LogLevel.DEBUG,
        summary=settings.log.summary,
    )


def dispatcher(settings: Settings) -> DispatcherOptions:
    """Return the options of the dispatcher."""
    return DispatcherOptions(
        batch=settings.dispatcher.batch,
        mem_low=settings.dispatcher.mem_low,
        mem_high=settings.dispatcher.mem_high,
        mem_hard=settings.dispatcher.mem_hard,
        mem_dialog=settings.dispatcher.mem_dialog,
        max_openings=settings.dispatcher.max_openings,
        max_dialogs=settings.transport.max_dialogs_per_peer,
        stale=settings.dispatcher.stale,
        store_retries=settings.dispatcher.store_retries,
        strict_error_origin=settings.dialog.strict_error_origin,
    )


def transport(settings: Settings) -> TransportOptions:
    """Return the options of the connections to other instances."""
    given = msgspec.structs.asdict(settings.transport)
    del given["starvation"]  # an option of the transmitter
    del given["max_dialogs_per_peer"]  # an option of the dispatcher
    if settings.endpoint is not None:
        given["drain"] = settings.endpoint.drain
    return TransportOptions(**given)


def sessions(settings: Settings) -> SessionOptions:
    """Return the options of the connections of clients."""
    clients = settings.clients
    return SessionOptions(
        clients=clients.max_clients,
        per_address=clients.max_per_address,
        logins=clients.max_logins,
        logins_per_address=clients.max_logins_per_address,
        login_timeout=clients.login_timeout.total_seconds(),
        outstanding=clients.outstanding,
        transaction_age=clients.max_transaction_age.total_seconds(),
        dialogs_per_user=clients.max_dialogs_per_user,
    )


def upkeep(settings: Settings, log: Log) -> Upkeep:
    """Return the clean-up and the backups of the instance."""
    return Upkeep(
        store_dirs=settings.store_dirs,
        backup_dirs=settings.backup_dirs,
        server=settings.shown_server,
        log=log,
    )
