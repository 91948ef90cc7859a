"""Objects and settings of the simulated instances.

`shop` and the local `audit` live at east, `warehouse` at west, `depot` at south, or at west in runs
without south. Orders go from the shop to the others; the warehouse forwards them to the depot.
If the broker of west is mirrored, its store is in a directory that `mate` is configured with, too.
Reads:  the plan.      Never: touches a store.
"""

from datetime import timedelta
from pathlib import Path
from typing import Final

from brokerd.config.settings import (
    Authentication,
    Clients,
    Dialog,
    Dispatcher,
    DynamicRoutingSettings,
    Encryption,
    Endpoint,
    Instance,
    Mirroring,
    Settings,
    StoreSettings,
    Transport,
)
from brokerd.objects.declarations import parse
from brokerd.objects.declared import Declared
from tests.engine.simulation.features import MIDDLE, MIRRORED, PARTNER
from tests.engine.simulation.plan import Plan

BROKER: Final = "main"
PORT: Final = 4022
CONTRACT: Final = "orders"
HANDLERS: Final = "tests.engine.simulation.workers"
SHARED: Final = "shared"
"""The directory of the store that the two partners share."""
REQUEST: Final = timedelta(seconds=30)
"""Lifetime of a request for a route."""


def home(service: str, instances: tuple[str, ...]) -> str:
    """Return the instance of a service."""
    if service in ("shop", "audit"):
        return "east"
    return "south" if service == "depot" and "south" in instances else "west"


def services(node: str, instances: tuple[str, ...]) -> list[str]:
    """Return the services of an instance."""
    every = ("shop", "audit", "warehouse", "depot")
    return [name for name in every if home(name, instances) == node]


def declaration(node: str, plan: Plan, *, off: str = "", broker_id: str = "") -> dict[str, object]:
    """Return the objects of an instance, as its `objects.toml` would declare them.

    `off`: a queue to be declared as disabled. `broker_id`: the id of west's broker, if that is
    mirrored."""
    here = services(node, plan.instances)
    return {
        "broker": {"name": BROKER, "default_encryption": "off"},
        "message_type": [
            {"name": "Order"},
            {"name": "Reply"},
            {"name": "Nudge", "validation": "empty"},
        ],
        "contract": [
            {
                "name": CONTRACT,
                "types": {"Order": "initiator", "Nudge": "any", "Reply": "target"},
            }
        ],
        "queue": [queue(name, activated=plan.activated, off=f"{name}_q" == off) for name in here],
        "service": [{"name": name, "queue": f"{name}_q", "contracts": [CONTRACT]} for name in here],
        kind_of_route(node): [
            {"name": f"to_{name}", **ways(node, name, plan, broker_id)[0]}
            for name in far_services(node, plan.instances)
        ],
    }


def kind_of_route(node: str) -> str:
    """Return the kind of an instance's routes: the forwarder has them in the instance's table."""
    return "instance_route" if node == MIDDLE else "route"


def far_services(node: str, instances: tuple[str, ...]) -> list[str]:
    """Return the services to which an instance has a route."""
    here = services(node, instances)
    return [name for name in ("shop", "warehouse", "depot") if name not in here]


def ways(node: str, service: str, plan: Plan, broker_id: str) -> list[dict[str, object]]:
    """Return the possible routes from an instance to a service, the usual one first.

    Each of them leads there.
    """
    there = home(service, plan.instances)
    if PARTNER in plan.instances and there == MIRRORED:
        pair = (address(there), address(PARTNER))
        return [
            {"service": service, "broker": broker_id, "address": one, "mirror": other}
            for one, other in (pair, pair[::-1])
        ]
    hops = [there]
    if MIDDLE in plan.instances and node != MIDDLE:
        hops = [MIDDLE, there]
    return [{"service": service, "address": address(hop)} for hop in hops]


def address(node: str) -> str:
    """Return the address of the broker endpoint of an instance."""
    return f"TCP://{node}:{PORT}"


def queue(service: str, *, activated: bool, off: bool = False) -> dict[str, object]:
    """Return the declaration of the queue of a service."""
    status = "off" if off else "on"
    queue: dict[str, object] = {"name": f"{service}_q", "status": status, "poison_handling": "off"}
    if activated and service != "shop":
        queue["activation"] = {"handler": f"{HANDLERS}:{service}", "max_readers": 3}
    return queue


def declared(node: str, plan: Plan, *, broker_id: str = "") -> Declared | None:
    """Return the checked declaration of an instance; None for a standby, which has no objects."""
    if node == PARTNER:
        return None
    return parse(declaration(node, plan, broker_id=broker_id))


def settings(node: str, data_dir: Path, plan: Plan) -> Settings:
    """Return the settings of an instance."""
    return Settings(
        instance=Instance(name=node, data_dir=data_dir, fast_paths=plan.fast_paths),
        clients=Clients(listen=f"unix:{node}.sock"),
        endpoint=Endpoint(
            listen=(node,),
            port=PORT,
            encryption=Encryption.DISABLED,
            authentication=Authentication.NONE,
            forwarding=node == MIDDLE,
        ),
        dialog=Dialog(
            fragment_size=plan.fragment_size,
            window_fragments=plan.window_fragments,
            ack_delay=plan.ack_delay,
            ack_every=plan.ack_every,
        ),
        transport=Transport(allow_plaintext=True),
        dispatcher=Dispatcher(batch=plan.batch),
        store=StoreSettings(flush_transactions=plan.flush_transactions),
        bcn=DynamicRoutingSettings(lifetime=REQUEST),
        mirroring=_mirroring(node, data_dir, plan),
    )


def _mirroring(node: str, data_dir: Path, plan: Plan) -> Mirroring:
    if PARTNER not in plan.instances or node not in (MIRRORED, PARTNER):
        return Mirroring()
    return Mirroring(brokers=(BROKER,), directory=data_dir.parent / SHARED)
