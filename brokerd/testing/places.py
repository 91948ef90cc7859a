"""Places: addresses of the simulated network, written like those of the real network."""

import errno

import msgspec

from brokerd.testing.stream import Address

_ALL_INTERFACES = frozenset({"", "*", "all", "0.0.0.0", "::", "[::]"})  # noqa: S104  # read, not bound
_HERE = _ALL_INTERFACES | {"127.0.0.1", "localhost", "::1", "[::1]"}


class Place(msgspec.Struct, frozen=True):
    """A parsed address: a port of a node, or a path."""

    host: str
    port: int
    path: str = ""

    def show(self) -> str:
        """Return the address as text."""
        return f"unix:{self.path}" if self.path else f"TCP://{self.host}:{self.port}"

    def peer(self) -> Address:
        """Return the address in the form of a transport's `peername`."""
        return self.path or (self.host, self.port)


def parse_address(address: str, node: str) -> Place:
    """Parse `TCP://host:port` or `unix:path`; wildcards and loopback mean the node itself.

    Raise `OSError` if the text is neither.
    """
    scheme, _, rest = address.partition(":")
    if scheme.lower() == "unix" and rest:
        return Place("", 0, rest)
    host, colon, port = rest.removeprefix("//").rpartition(":")
    if scheme.lower() != "tcp" or not colon or not port.isdigit():
        raise OSError(errno.EINVAL, f"{address!r} is not an address of the simulated network")
    host = host.lower()
    return Place(node if host in _HERE else host, int(port))
