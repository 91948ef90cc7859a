"""Addresses: the servers that a URL names, to be tried one after the other.

Reads: nothing.      Calls: nothing.      Never: puts a password into a message.

The driver takes a URL of several servers, but gives up all of them when the first one is starting,
or does not answer at all. These are the moments for which the others are named.
"""

from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit


def each_address(url: str) -> list[str]:
    """Return one URL for each server of a URL. `ValueError`: the URL cannot be read."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        if "host" in query or "port" in query or "," not in hosts:
            return [url]
        return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]
    several = query.get("host", "").split(",")
    ports = query.get("port", "").split(",")
    if len(several) == 1 or len(ports) not in (1, len(several)):
        return [url]
    ports = ports if len(ports) == len(several) else ports * len(several)
    found = []
    for host, port in zip(several, ports, strict=True):
        of_one = query | {"host": host} | ({"port": port} if port else {})
        text = urlencode(of_one, quote_via=quote, safe="/")
        # `geturl` leaves out an authority without a host and user.
        found.append(f"{parts.scheme}://{parts.netloc}{parts.path}?{text}")
    return found


def shown(url: str) -> str:
    """Return the server that a URL of one server names, for messages."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = parts.netloc.rpartition("@")[2] or query.get("host", "this machine")
    port = query.get("port")
    return unquote(host) + (f" port {port}" if port else "")
