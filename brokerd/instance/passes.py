"""Passes: the one table of periodic work (design D7), in the order of CLK-3.

Reads:  the parts, the figures of the clock.      Calls: one method of a part for each pass.
Never:  loops; the ticker runs the table.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.config.settings import Settings
from brokerd.errors import StoreFull
from brokerd.instance.parts import Parts
from brokerd.maintenance import timers
from brokerd.maintenance.dialog_expiry import expire, nothing_expired, nothing_purgeable, purge
from brokerd.maintenance.ticks import Pass


def passes(
    parts: Parts, settings: Settings, *, clock: Clock, summarise: Callable[[], int]
) -> list[Pass]:
    """Return the passes with their multiples of ticks, in the order in which a tick runs them."""
    fast, slow = settings.clock.fast_every, settings.clock.slow_every
    return [
        Pass("clock", 1, parts.clock_watch.check),  # REL-24
        Pass("room", 1, parts.disk_space.check),  # REL-26
        Pass("slow_commits", 1, parts.slow_commits.check),  # REL-34
        Pass("moved_stores", 1, parts.store_watch.check),  # REL-37
        Pass("server", slow, parts.store_places.read_server, apart=True),  # REL-56
        Pass("hung_sessions", 1, parts.hung_sessions.check, apart=True),  # REL-89
        Pass("log_heads", 1, parts.store_watch.sync_heads, apart=True),  # REL-39
        Pass("dispatcher", 1, parts.dispatcher.purge),  # DSP-9
        Pass("queue_monitors", 1, parts.readers.tick),  # PER-3
        Pass("sessions", 1, parts.sessions.sweep),  # CLP-61
        Pass("lifetimes", 1, partial(_expire, parts)),  # PER-23
        Pass("conversation_timers", 1, partial(_fire_timers, parts)),  # PER-23
        Pass("dialog_log", 1, parts.journal.write_closed, apart=True),  # PER-24
        Pass("notices", fast, parts.refusal_notices.trim),  # XMT-10
        Pass("mirrors", 1, parts.mirroring.check, apart=True),  # RTE-55
        Pass("mirrored_routes", fast, parts.mirrors.check_addresses),  # RTE-56
        Pass("duplicate_brokers", fast, parts.duplicate_brokers.check_contested),  # RTE-71
        Pass("transmitter", fast, parts.transmitter.reclassification.reclassify),  # XMT-9
        Pass("instance_routes", fast, parts.router.expire),  # RTE-65
        Pass("transport_connect", fast, parts.destinations.connect_pass),  # TRN-14
        Pass("dialog_counts", slow, parts.journal.count_dialogs, apart=True),  # design D12
        Pass("open_dialogs", 1, parts.journal.end_day, apart=True),  # design D16
        Pass("metrics", _interval(settings), parts.journal.write_interval),  # design D12
        Pass("idle_connections", slow, parts.destinations.close_idle),  # TRN-28
        Pass("forwarder", slow, partial(_forwarder, parts)),  # FWD-9
        Pass("absent_brokers", slow, partial(_try_absent, parts), apart=True),  # CLK-6
        Pass("dynamic_routing", slow, parts.route_requester.fire),  # BCN-9
        Pass("unsettled_endpoints", 1, partial(_ask_unsettled, parts)),  # DLP-57
        Pass("closed_endpoints", slow, partial(_purge, parts)),  # PER-24
        Pass("lingering_dialogs", slow, parts.lingering_dialogs.check, apart=True),  # PBT-5
        Pass("certificates", slow, partial(_tend_certificates, parts)),  # NBT-21
        Pass("idle_dialogs", 1, parts.idle_dialogs.check, apart=True),  # REL-44
        Pass("dialog_owners", 1, partial(_write_owners, parts)),  # REL-45
        Pass("event_notifications", slow, parts.events.check),  # PBT-15
        Pass("commit_tokens", slow, partial(_prune_clients, parts, clock)),  # REL-2
        Pass("endpoints", 1, partial(_trim, parts)),  # XMT-3
        Pass("removals", 1, partial(_sweep, parts)),  # design D4
        Pass("space", 1, partial(_reclaim, parts), apart=True),  # MAN-13
        Pass("log_summary", slow, summarise),  # MON-11
    ]


def _interval(settings: Settings) -> int:
    """Return `log.metrics_interval` in ticks, rounded, at least one."""
    return max(1, round(settings.log.metrics_interval / settings.clock.tick))


def _expire(parts: Parts) -> int | Awaitable[int]:
    return _each(_delivering(parts), expire, unless=nothing_expired)


def _fire_timers(parts: Parts) -> int | Awaitable[int]:
    return _each(_delivering(parts), timers.tick, unless=timers.none_set)


def _ask_unsettled(parts: Parts) -> int | Awaitable[int]:
    return _each(
        _delivering(parts),
        parts.unsettled_endpoints.run,
        unless=parts.unsettled_endpoints.nothing_due,
    )


def _write_owners(parts: Parts) -> int | Awaitable[int]:
    return _each(
        parts.brokers.values(),
        lambda broker: broker.owners.write(),
        unless=lambda broker: not broker.owners.has_unwritten,
    )


def _purge(parts: Parts) -> int | Awaitable[int]:
    return _each(parts.brokers.values(), purge, unless=nothing_purgeable)


def _each(
    brokers: Iterable[Broker],
    work: Callable[[Broker], Awaitable[int]],
    *,
    unless: Callable[[Broker], bool],
) -> int | Awaitable[int]:
    """Run the work on each broker that needs it, in turn.

    Return an awaitable of the sum of the results, or 0 itself if no broker needs the work."""
    due = [broker for broker in brokers if not unless(broker)]
    return _sum(due, work) if due else 0


async def _sum(brokers: list[Broker], work: Callable[[Broker], Awaitable[int]]) -> int:
    return sum([await work(broker) for broker in brokers])


def _forwarder(parts: Parts) -> int:
    return parts.forwarder.purge() + parts.forwarder.report.summarise()


def _delivering(parts: Parts) -> list[Broker]:
    """Return the brokers with delivery on; in others, due work waits for delivery (MAN-4)."""
    return [one for one in parts.brokers.values() if one.enabled]


def _tend_certificates(parts: Parts) -> int | Awaitable[int]:
    lines = parts.certificate_expiry.check() + parts.authority.check()
    return parts.credential_store.renew() if parts.credential_store.is_renewal_due else lines


def _try_absent(parts: Parts) -> int | Awaitable[int]:
    return parts.absent_brokers.retry() if parts.absent_brokers.reasons else 0


def _trim(parts: Parts) -> int:
    return sum(broker.endpoints.trim() for broker in parts.brokers.values())


def _sweep(parts: Parts) -> int:
    return sum(broker.store.sweep() for broker in parts.brokers.values())


def _reclaim(parts: Parts) -> int | Awaitable[int]:
    brokers = list(parts.brokers.values())
    if not parts.disk_space.is_full and all(broker.store.has_nothing_free for broker in brokers):
        return 0
    return _give_back(parts, brokers)


async def _give_back(parts: Parts, brokers: list[Broker]) -> int:
    if parts.disk_space.is_full:
        for broker in brokers:
            with suppress(StoreFull):
                await broker.store.fold()
    return sum([await broker.store.reclaim() for broker in brokers])


def _prune_clients(parts: Parts, clock: Clock) -> int:
    now = clock.utc()
    return sum(broker.store.prune_clients(now) for broker in parts.brokers.values())
