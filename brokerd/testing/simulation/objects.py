"""Objects and settings of the simulated instances.

`shop` and the local `audit` live at east, `warehouse` at west, `depot` at south, or at west where
there is no south. Orders go from shop to the others; the warehouse sends them on to the depot.
Where the broker of west is mirrored, its store is in a directory that mate names as well.
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
from brokerd.testing.simulation.features import MIDDLE, MIRRORED, PARTNER
from brokerd.testing.simulation.plan import Plan

BROKER: Final = "main"
PORT: Final = 4022
CONTRACT: Final = "orders"
HANDLERS: Final = "brokerd.testing.simulation.workers"
SHARED: Final = "shared"
"""The directory that the two partners name."""
REQUEST: Final = timedelta(seconds=30)
"""What a request for a route may take."""


def home(service: str, instances: tuple[str, ...]) -> str:
    """The instance where a service lives."""
    if service in ("shop", "audit"):
        return "east"
    return "south" if service == "depot" and "south" in instances else "west"


def services(node: str, instances: tuple[str, ...]) -> list[str]:
    """The services of an instance."""
    every = ("shop", "audit", "warehouse", "depot")
    return [name for name in every if home(name, instances) == node]


def declaration(node: str, plan: Plan, *, off: str = "", broker_id: str = "") -> dict[str, object]:
    """What `objects.toml` of that instance would say; queue `off` is switched off.

    `broker_id`: that of west, where it is mirrored."""
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
    """What the routes of an instance are: who forwards knows its ways in the instance's table."""
    return "instance_route" if node == MIDDLE else "route"


def far_services(node: str, instances: tuple[str, ...]) -> list[str]:
    """The services to which an instance has a route."""
    here = services(node, instances)
    return [name for name in ("shop", "warehouse", "depot") if name not in here]


def ways(node: str, service: str, plan: Plan, broker_id: str) -> list[dict[str, object]]:
    """What routes from there to a service may say, each of which leads there; the usual first."""
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
    """Where the broker endpoint of an instance is."""
    return f"TCP://{node}:{PORT}"


def queue(service: str, *, activated: bool, off: bool = False) -> dict[str, object]:
    """The queue of a service."""
    status = "off" if off else "on"
    queue: dict[str, object] = {"name": f"{service}_q", "status": status, "poison_handling": "off"}
    if activated and service != "shop":
        queue["activation"] = {"handler": f"{HANDLERS}:{service}", "max_readers": 3}
    return queue


def declared(node: str, plan: Plan, *, broker_id: str = "") -> Declared | None:
    """The same, checked; a standby has nothing of its own to declare."""
    if node == PARTNER:
        return None
    return parse(declaration(node, plan, broker_id=broker_id))


def settings(node: str, data_dir: Path, plan: Plan) -> Settings:
    """The configuration file of that instance."""
    return Settings(
        instance=Instance(name=node, data_dir=data_dir),
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
