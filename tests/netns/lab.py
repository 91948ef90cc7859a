"""Lab: real daemons, each in a network namespace of its own, joined by a switch whose wires break.

The namespaces lie in a user namespace made here, so that no right is needed but to make one;
`why_not` says whether that is allowed. A daemon's end of its wire is `eth0` in its namespace, the
other end a port of the bridge. What a wire lets through is decided at both ends: a `blackhole`
queue at the daemon's end drops what it sends, one at the switch's what is sent to it.

Clients connect from outside by Unix sockets, which are files and know no namespaces.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import brokerd
from brokerd.client.session import Session
from tests.trust import introduce

TOOLS: Final = ("ip", "tc", "unshare", "nsenter")
NETWORK: Final = "10.77.0"
PORT: Final = 4022
READY_WITHIN: Final = 240.0

SETTINGS: Final = """
[instance]
name = "{name}"
data_dir = "{name}"
[endpoint]
listen = "{address}"
port = {port}
forwarding = {forwarding}
[transport]
connect_timeout = "1s"
login_timeout = "2s"
suppress_lost = "500ms"
suppress_failed = "500ms"
ping_after = "1s"
ping_timeout = "1s"
arbitration_ping = "500ms"
[clock]
tick = "250ms"
[dialog]
retry_first = "250ms"
retry_max = "1s"
[log]
format = "json"
file = "{name}.log"
"""


def why_not() -> str:
    """Why no lab can be built here; "" if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    attempt = (
        "ip link add lab type bridge && ip link add lab0 type veth peer name lab1 && "
        "tc qdisc add dev lab0 root blackhole && unshare -n true"
    )
    tried = subprocess.run(
        ["unshare", "-rn", "sh", "-c", attempt], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"network namespaces are not allowed here: {tried.stderr.strip()[-200:]}"
    return ""


class Namespace:
    """A network namespace, kept by a process that sleeps in it."""

    def __init__(self, *enter: str) -> None:
        """`enter`: the command that makes it and runs the rest of its line inside."""
        command = [*enter, "sh", "-c", "echo made; exec sleep infinity"]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "made\n":
            raise RuntimeError(f"no namespace: {' '.join(command)}")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def inside(self) -> list[str]:
        """The beginning of a command that is to run in it."""
        return ["nsenter", "-t", str(self.pid), "-U", "--preserve-credentials", "-n"]

    def run(self, line: str, *, check: bool = True) -> None:
        """Run a shell line in it."""
        done = subprocess.run(
            [*self.inside(), "sh", "-c", line], capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{line}: {done.stderr.strip()}")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class Node:
    """A daemon and its wire."""

    def __init__(self, lab: "Lab", name: str, number: int, *, forwarding: bool) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.lab = lab
        self._port = f"port{number}"
        self._namespace = Namespace(*lab.switch.inside(), "unshare", "-n")
        self._process: subprocess.Popen[bytes] | None = None
        self.boots = 0
        self.services: tuple[str, ...] = ()
        """Its services that others send to."""
        self.neighbours: list[Node] = []
        """The daemons that it is connected with; it reaches others by way of them."""
        lab.switch.run(
            f"ip link add {self._port} type veth peer name eth0 netns {self._namespace.pid} && "
            f"ip link set {self._port} master wires up"
        )
        self._namespace.run(
            f"ip link set lo up && ip addr add {self.address}/24 dev eth0 && ip link set eth0 up"
        )
        text = SETTINGS.format(
            name=name, address=self.address, port=PORT, forwarding=str(forwarding).lower()
        )
        self._settings = lab.folder / f"{name}.toml"
        self._settings.write_text(text, encoding="utf-8")
        self._objects = lab.folder / f"{name}.objects.toml"

    @property
    def place(self) -> str:
        """Where other daemons reach it."""
        return f"TCP://{self.address}:{PORT}"

    @property
    def socket(self) -> str:
        """Where clients reach it."""
        return f"unix:{self.lab.folder / self.name / 'brokerd.sock'}"

    def declare(self, objects: str) -> None:
        self._objects.write_text(objects, encoding="utf-8")

    # The daemon.

    def start(self) -> None:
        """Start it on its files; it is ready when a client has been answered."""
        words = ["-m", "brokerd", "serve", "-c", str(self._settings)]
        if not self.boots:
            words += ["--objects", str(self._objects)]
        self.boots += 1
        own = {key: text for key, text in os.environ.items() if not key.startswith("BROKERD_")}
        with (self.lab.folder / f"{self.name}.out").open("ab") as out:
            self._process = subprocess.Popen(
                [*self._namespace.inside(), sys.executable, *words],
                stdout=out,
                stderr=out,
                env=own | {"PYTHONPATH": str(Path(brokerd.__file__).parents[1])},
            )

    def kill(self) -> None:
        """As the power would."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    @property
    def died(self) -> bool:
        """Whether it has ended without being told."""
        return self._process is not None and self._process.poll() is not None

    # Its wire.

    def mute(self) -> None:
        """Nothing that it sends arrives."""
        self._namespace.run("tc qdisc replace dev eth0 root blackhole")

    def deafen(self) -> None:
        """Nothing that is sent to it arrives."""
        self.lab.switch.run(f"tc qdisc replace dev {self._port} root blackhole")

    def unplug(self) -> None:
        """Take the wire out: both ends see it."""
        self.lab.switch.run(f"ip link set {self._port} down")

    def heal(self) -> None:
        """Let everything through."""
        self.lab.switch.run(f"ip link set {self._port} up")
        self.lab.switch.run(f"tc qdisc del dev {self._port} root", check=False)
        self._namespace.run("tc qdisc del dev eth0 root", check=False)

    def close(self) -> None:
        self.kill()
        self._namespace.close()


class Lab:
    """The switch and the daemons at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.switch = Namespace("unshare", "-rn")
        self.nodes: dict[str, Node] = {}
        self.switch.run("ip link add wires type bridge && ip link set wires up")

    def add(self, name: str, *, forwarding: bool = False) -> Node:
        node = self.nodes[name] = Node(self, name, len(self.nodes) + 1, forwarding=forwarding)
        return node

    async def connect(self, node: Node, **options: object) -> Session:
        """A client that does not give up while daemons are killed."""
        patient: dict[str, object] = {"broker": "main", "retry": 600.0, "wait": READY_WITHIN}
        session = await brokerd.connect(node.socket, **(patient | options))  # type: ignore[arg-type]
        assert isinstance(session, Session)
        return session

    async def introduce(self) -> None:
        """Let all daemons know each other."""
        for here in self.nodes.values():
            async with await self.connect(here) as at:
                for there in self.nodes.values():
                    if here is there:
                        continue
                    address = there.place if there in here.neighbours else None
                    async with await self.connect(there) as other:
                        await introduce(
                            at, other, there.name, address=address, shares=here.services
                        )

    def logged(self, word: str) -> Iterator[str]:
        """Lines of the daemons' logs in which a word occurs."""
        for path in sorted(self.folder.glob("*.log")):
            for line in path.read_text(encoding="utf-8").splitlines():
                if word in line:
                    yield f"{path.stem}: {line}"

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.switch.close()


@contextlib.contextmanager
def lab(folder: Path, names: Sequence[str], *, through: str = "") -> Iterator[Lab]:
    """Two daemons with a service each, `shop` at the first and `warehouse` at the second.

    `through` names a third one by way of which they reach each other."""
    made = Lab(folder)
    try:
        east, west = (made.add(name) for name in names)
        middle = made.add(through, forwarding=True) if through else None
        east.declare(_objects("shop", "warehouse", (middle or west).place, west.name))
        west.declare(_objects("warehouse", "shop", (middle or east).place, east.name))
        east.services, west.services = ("shop",), ("warehouse",)
        for one, other in ((east, middle or west), (west, middle or east)):
            one.neighbours = [other]
            if middle is not None:
                middle.neighbours.append(one)
        if middle is not None:
            middle.declare(_passes_on({"warehouse": west.place, "shop": east.place}))
        for node in made.nodes.values():
            node.start()
        yield made
    finally:
        made.close()


def _objects(here: str, there: str, address: str, far: str) -> str:
    return f"""
[broker]
name = "main"
default_encryption = "on"
[[message_type]]
name = "Order"
[[message_type]]
name = "Reply"
[[contract]]
name = "orders"
types = {{ "Order" = "initiator", "Reply" = "target" }}
[[queue]]
name = "{here}_q"
[[service]]
name = "{here}"
queue = "{here}_q"
contracts = ["orders"]
[[route]]
name = "to_{there}"
service = "{there}"
address = "{address}"
[[remote_service_binding]]
name = "to_{there}"
service = "{there}"
principal = "peer:{far}"
"""


def _passes_on(services: dict[str, str]) -> str:
    routes = [
        f'[[instance_route]]\nname = "to_{name}"\nservice = "{name}"\naddress = "{address}"\n'
        for name, address in services.items()
    ]
    return '[broker]\nname = "main"\n' + "".join(routes)
