"""Objects and settings of the simulated instances.

`shop` and the local `audit` live at east, `warehouse` at west, `depot` at south, or at west where
there is no south. Orders go from shop to the others; the warehouse sends them on to the depot.
Reads:  the plan.      Never: touches a store.
"""

from pathlib import Path
from typing import Final

from brokerd.declarations import parse
from brokerd.objects import Declared
from brokerd.settings import (
    Authentication,
    Clients,
    Dialog,
    Dispatcher,
    Encryption,
    Endpoint,
    Instance,
    Settings,
    StoreSettings,
    Transport,
)
from brokerd.testing.simulation.plan import Plan

BROKER: Final = "main"
PORT: Final = 4022
CONTRACT: Final = "orders"
HANDLERS: Final = "brokerd.testing.simulation.workers"


MIDDLE: Final = "middle"
"""The instance that forwards, where there is one: then the others know the way by it alone."""


def home(service: str, instances: tuple[str, ...]) -> str:
    """The instance where a service lives."""
    if service in ("shop", "audit"):
        return "east"
    return "south" if service == "depot" and "south" in instances else "west"


def services(node: str, instances: tuple[str, ...]) -> list[str]:
    """The services of an instance."""
    every = ("shop", "audit", "warehouse", "depot")
    return [name for name in every if home(name, instances) == node]


def declaration(
    node: str, instances: tuple[str, ...], *, activated: bool, off: str = ""
) -> dict[str, object]:
    """What `objects.toml` of that instance would say; queue `off` is switched off."""
    here = services(node, instances)
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
        "queue": [_queue(name, activated, f"{name}_q" == off) for name in here],
        "service": [{"name": name, "queue": f"{name}_q", "contracts": [CONTRACT]} for name in here],
        "instance_route" if node == MIDDLE else "route": [
            {
                "name": f"to_{name}",
                "service": name,
                "address": f"TCP://{_next_hop(node, name, instances)}:{PORT}",
            }
            for name in ("shop", "warehouse", "depot")
            if name not in here
        ],
    }


def _next_hop(node: str, service: str, instances: tuple[str, ...]) -> str:
    through = MIDDLE in instances and node != MIDDLE
    return MIDDLE if through else home(service, instances)


def _queue(service: str, activated: bool, off: bool) -> dict[str, object]:
    status = "off" if off else "on"
    queue: dict[str, object] = {"name": f"{service}_q", "status": status, "poison_handling": "off"}
    if activated and service != "shop":
        queue["activation"] = {"handler": f"{HANDLERS}:{service}", "max_readers": 3}
    return queue


def declared(node: str, instances: tuple[str, ...], *, activated: bool) -> Declared:
    """The same, checked."""
    return parse(declaration(node, instances, activated=activated))


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
    )
