"""Every limit and period of the settings is an option, and all of them may be tiny at once."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from brokerd.broker.options import BrokerOptions
from brokerd.broker.outgoing import OutgoingOptions
from brokerd.broker.window import WindowOptions
from brokerd.config.settings import Endpoint, Settings
from brokerd.testing.link import Conditions
from tests.engine.simulation import objects, runs
from tests.engine.simulation.plan import draw
from tests.engine.simulation.runs import simulator

KIB = 1024
SECOND = timedelta(seconds=1)
NOTHING = timedelta()
TINY: dict[str, dict[str, Any]] = {
    "clients": {
        "outstanding": 1,
        "max_frame": 4 * KIB,
        "lock_timeout": SECOND,
        "login_timeout": SECOND,
    },
    "endpoint": {"drain": NOTHING},
    "clock": {"tick": SECOND, "fast_every": 1, "slow_every": 1},
    "transport": {
        "connect_timeout": SECOND,
        "login_timeout": SECOND,
        "suppress_lost": NOTHING,
        "suppress_failed": NOTHING,
        "connect_spread": NOTHING,
        "idle_close": SECOND,
        "ping_after": SECOND,
        "ping_timeout": SECOND,
        "arbitration_ping": SECOND,
        "boxcar_bytes": 64 * KIB,
        "boxcar_fragments": 1,
        "max_frame": 128 * KIB,
        "send_mark": 4 * KIB,
        "destination_memory": 64 * KIB,
        "starvation": SECOND,
    },
    "dialog": {
        "fragment_size": 256,
        "check_aside": 1,
        "ack_delay": NOTHING,
        "ack_every": 1,
        "retry_first": SECOND,
        "retry_max": SECOND,
        "window_fragments": 1,
        "window_bytes": 64 * KIB,
        "replay_guard": NOTHING,
        "hops": 1,
        "lingering_after": SECOND,
        "time_to_live": SECOND,
    },
    "checks": {"time": timedelta(milliseconds=1), "memory": 16 * 1024 * KIB},
    "transmitter": {
        "max_objects": 1,
        "cache_age": SECOND,
        "cache_size": 1,
        "error_pause": NOTHING,
    },
    "dispatcher": {
        "stale": SECOND,
        "notice_interval": NOTHING,
        "mem_low": 64 * KIB,
        "mem_high": 64 * KIB,
        "mem_hard": 64 * KIB,
        "mem_dialog": 64 * KIB,
        "max_openings": 1,
        "batch": 1,
        "store_retries": 1,
    },
    "forwarder": {"max_age": SECOND},
    "bcn": {"lifetime": SECOND, "most_open": 1, "failures": 1},
    "store": {
        "flush_transactions": 1,
        "flush_bytes": 64 * KIB,
        "min_free": 0,
        "reserve": 0,
        "slow_after": SECOND,
    },
    "daemon": {"drain": NOTHING, "loop_blocked": NOTHING},
    "log": {
        "summary": SECOND,
        "metrics_interval": SECOND,
        "segment_age": SECOND,
        "segment_size": 4 * KIB,
    },
}
NOT_TINY = {
    "clients.max_clients": "one too many is refused, and all are needed",
    **{
        f"{section}.{name}": "a simulated network asks no door"
        for section, names in {
            "clients": ("max_per_address", "max_logins", "max_logins_per_address"),
            "transport": ("max_peers", "max_per_address", "max_logins", "max_logins_per_address"),
        }.items()
        for name in names
    },
    **{
        f"http.{name}": "a simulated instance does not listen for HTTP"
        for name in (
            "max_connections",
            "max_per_address",
            "metrics_series",
            "page_lifetime",
            "request_timeout",
        )
    },
    "store.takeover_after": "the stores of a simulated instance are files",
    "clients.max_transaction_age": "a worker's transaction waits as long as its receive",
    "endpoint.port": "no limit",
    "endpoint.forward_size_mb": "0 is no forwarding at all",
    "dialog.max_message": "what is longer is refused",
    "clients.max_dialogs_per_user": "0 is no limit, and a user has more than one dialog",
    "transport.max_dialogs_per_peer": "the same of a peer",
    "dialog.idle_after": "a dialog that is silent in between is one that fails",
    "dialog.idle_notice": "the same",
    "dialog.default_lifetime": "a dialog that is over in the middle is one that fails",
}
LIMITS = BrokerOptions(
    endpoints=1,
    unfinished_bytes=1,
    window=WindowOptions(window_messages=1, window_bytes=1, page_messages=1, page_bytes=1),
    outgoing=OutgoingOptions(memory=1, page_messages=1, page_bytes=1),
)


def sections(settings):
    given = {**msgspec.structs.asdict(settings), "endpoint": settings.endpoint or Endpoint()}
    return {name: one for name, one in given.items() if isinstance(one, msgspec.Struct)}


def tiny(settings):
    given = sections(settings)
    changed = {name: msgspec.structs.replace(given[name], **TINY[name]) for name in TINY}
    return msgspec.structs.replace(settings, **changed)


@pytest.mark.rule("HK-11")
def test_every_number_and_duration_of_the_settings_is_made_tiny_or_says_why_not():
    numbers = {
        f"{section}.{name}"
        for section, one in sections(Settings()).items()
        for name, value in msgspec.structs.asdict(one).items()
        if isinstance(value, int | timedelta) and not isinstance(value, bool)
    }
    told = {f"{section}.{name}" for section, one in TINY.items() for name in one}
    assert numbers == told | NOT_TINY.keys()


@pytest.mark.rule("HK-11")
@pytest.mark.parametrize("activated", [False, True])
def test_dialogs_get_through_with_everything_tiny(monkeypatch, activated):
    made = objects.settings
    calm = {
        "instances": ("east", "west"),
        "activated": activated,
        "faults": (),
        "failpoints": {},
        "nights": (),
        "commits_cut": 0.0,
        "drop": 0.0,
        "duplicate": 0.0,
        "reorder": 0.0,
        "conditions": Conditions(latency=0.002),
        "limits": LIMITS,
    }
    monkeypatch.setattr(runs, "draw", lambda it: msgspec.structs.replace(draw(it), **calm))
    monkeypatch.setattr(objects, "settings", lambda *given: tiny(made(*given)))
    with simulator() as simulated:
        result = simulated.run(1000)
    assert result.problems == ()
    assert result.counts["messages received"] > 0
