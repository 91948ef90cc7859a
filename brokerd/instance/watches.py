"""Watches: makes the parts that watch the disk, the clock, the stores and the dialogs.

Reads:  settings.      Calls: the constructors of those parts.
Never:  starts or waits for anything; `Assembly` calls this.
"""

from functools import partial

from brokerd.admin.hand_over import HandOver
from brokerd.clock import Clock, SteadyClock
from brokerd.config.settings import Settings
from brokerd.instance.parts import Parts
from brokerd.instance.store_places import StorePlaces
from brokerd.instance.surroundings import Surroundings
from brokerd.maintenance.clock_watch import ClockWatch
from brokerd.maintenance.disk_space import DiskSpace
from brokerd.maintenance.hung_sessions import HungSessions
from brokerd.maintenance.idle_dialogs import IdleDialogs
from brokerd.maintenance.lingering_dialogs import LingeringDialogs
from brokerd.maintenance.slow_commits import SlowCommits
from brokerd.maintenance.store_watch import StoreWatch
from brokerd.maintenance.unsettled_endpoints import UnsettledEndpoints
from brokerd.model import MSDB


def build_watches(
    parts: Parts, settings: Settings, world: Surroundings, clock: SteadyClock
) -> None:
    """Build the parts that watch the disk, the clock and the stores."""
    parts.disk_space = DiskSpace(
        disk=world.disk,
        min_free=settings.store.min_free,
        reserve=settings.store.reserve,
        brokers=parts.brokers,
        log=world.log,
    )
    parts.store_places = StorePlaces(settings, world.executor, parts.brokers.keys())
    parts.slow_commits = SlowCommits(
        brokers=parts.brokers,
        after=settings.store.slow_after.total_seconds(),
        log=world.log,
        waits_for_standby=parts.store_places.waits_for_standby,
    )
    parts.hand_over = HandOver(log=world.log)
    parts.clock_watch = ClockWatch(clock=clock, msdb=settings.store_path(MSDB), log=world.log)
    parts.store_watch = StoreWatch(brokers=parts.brokers, failed=parts.tasks.fail)
    parts.hung_sessions = HungSessions(
        brokers=parts.brokers,
        late=parts.slow_commits.late,
        look=partial(parts.store_places.read_server, with_waits=True),
        hung_session=parts.store_places.hung_session,
        after=settings.store.takeover_after.total_seconds(),
        fail=parts.tasks.fail_store,
    )


def watch_dialogs(parts: Parts, settings: Settings, world: Surroundings, clock: Clock) -> None:
    """Build the parts that watch dialogs, which need those that send."""
    parts.unsettled_endpoints = UnsettledEndpoints(
        ask=parts.orphan_replies.request_first_acked, clock=clock
    )
    parts.lingering_dialogs = LingeringDialogs(
        brokers=parts.brokers, clock=clock, log=world.log, limit=settings.dialog.lingering_after
    )
    parts.idle_dialogs = IdleDialogs(
        settings.dialog, parts.brokers, clock, world.log, parts.transmitter.refuse
    )
