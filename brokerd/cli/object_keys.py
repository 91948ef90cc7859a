"""The keys of the KEY=VALUE words of `create` and `alter`, with meaning and default.

Reads:  nothing.      Calls: nothing.
Never:  checks a value: the daemon does. A test compares the keys with those of files of objects.
To add an option to an object: a row here, and its form in `objects.forms`.
"""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from typing import Any, Final, NamedTuple

from brokerd.config.toml_file import did_you_mean
from brokerd.errors import UsageError
from brokerd.rule_ids import without_rules


class Key(NamedTuple):
    """One key of a kind of object."""

    name: str
    """Name of the key; with dots, if it is in a section."""
    meaning: str
    default: str = ""
    """Default as text; empty = no default: the key is required, or absent unless given."""
    many: bool = False
    """Whether the value is a list, which may also be written with commas."""
    any_below: bool = False
    """Whether the part after the dot is a name that the user chooses."""


_ROUTE: Final = (
    Key("service", "the service that the route is for", "every service"),
    Key("broker", "the broker of that service, a GUID", "any"),
    Key("address", "TCP://HOST:PORT, LOCAL or TRANSPORT"),
    Key("mirror", "the other TCP://HOST:PORT of a mirrored broker", "none"),
    Key("lifetime", "lifetime of the route: 90s, 7d", "no end"),
)
KEYS: Final[dict[str, tuple[Key, ...]]] = {
    "message_type": (
        Key(
            "validation",
            "none, empty, well_formed_xml, valid_xml, well_formed_json, valid_json",
            "none",
        ),
        Key("schema", "the XSD or JSON Schema of valid_xml, valid_json; @FILE reads it"),
        Key("require_body", "on, off: whether a body may be missing", "on, well_formed_xml: off"),
        Key("validate_on_send", "on, off: check at the sender as well", "off"),
    ),
    "contract": (
        Key("types.NAME", "who sends message type NAME: initiator, target, any", any_below=True),
    ),
    "queue": (
        Key("status", "on, off: whether messages can be added and received", "on"),
        Key("retention", "on, off: keep messages until their dialog ends", "off"),
        Key("retention_limit.max_rows", "most retained messages of a dialog", "no limit"),
        Key(
            "retention_limit.max_bytes",
            "most bytes of the retained messages of a dialog",
            "no limit",
        ),
        Key("retention_limit.policy", "at the limit: error, drop_oldest, archive", "error"),
        Key("retention_limit.archive", "the queue to which the policy archive moves messages"),
        Key("receive_ageing", "off, or the waiting time that raises a message by one level", "off"),
        Key("max_messages", "off, or the number of messages at which it takes no more", "off"),
        Key("max_bytes", "off, or the size of all bodies at which it takes no more", "off"),
        Key("poison_handling", "on, off: whether consecutive rollbacks have consequences", "on"),
        Key(
            "poison_mode",
            "disable_queue, park: the consequence of consecutive rollbacks",
            "disable_queue",
        ),
        Key("poison_threshold", "the number of consecutive rollbacks", "5, with park 8"),
        Key("poison_disconnects", "the number of connections cut in a transaction", "20"),
        Key("poison_backoff", "with park: wait of a group after its first rollback", "1s"),
        Key("poison_backoff_max", "with park: the longest wait of a group", "5min"),
        Key("activation.handler", "module:function of the readers, which load starts"),
        Key("activation.status", "on, off", "on; off if added to an existing queue"),
        Key("activation.max_readers", "readers at a time, 0 to 32767", "1"),
        Key("activation.run_as", "the principal that the handler runs as", "owner"),
        Key("activation.host", "daemon, process: where the handler runs", "daemon"),
        Key("activation.command", "a program instead of a handler, with its arguments"),
        Key("activation.memory", "memory limit of a process's data, 0 for no limit", "1GiB"),
        Key("activation.deadline", "off, or the longest time of a reader without a receive", "off"),
        Key("activation.ramp_interval", "time between two starts under load", "5s"),
        Key("activation.initial_readers", "readers to start at once, at most one per group", "1"),
        Key("activation.spare", "on, off: keep a process ready to be the next reader", "on"),
        Key(
            "activation.drain_wait", "how long a reader waits for messages before it ends", "500ms"
        ),
    ),
    "service": (
        Key("queue", "the queue in which its messages arrive"),
        Key("contracts", "the contracts of dialogs that it accepts: a,b", "none", many=True),
    ),
    "priority": (
        Key("contract", "only dialogs on this contract", "ANY"),
        Key("local_service", "only dialogs of this local service", "ANY"),
        Key("remote_service", "only dialogs with this far service", "ANY"),
        Key("level", "1 (lowest) to 10", "5"),
    ),
    "route": _ROUTE,
    "instance_route": _ROUTE,
    "remote_service_binding": (
        Key("service", "the remote service that dialogs are begun to"),
        Key("principal", "the owner of that service's certificate: peer:NAME"),
        Key("anonymous", "on, off: whether the initiator stays unproven (SEC-19)", "off"),
    ),
    "event_notification": (
        Key("events", "names of events and of groups of events", many=True),
        Key("service", "the service that is notified"),
        Key("queue", "only events of this queue", "every queue"),
        Key(
            "scope", "queue, broker, instance: where the events happen", "broker, with queue queue"
        ),
        Key("broker", "the broker of that service, a GUID or CURRENT_DATABASE", "this broker"),
        Key("fan_in", "on, off: share one message with others to the same service", "off"),
        Key(
            "activation_timeout", "repeat QUEUE_ACTIVATION after this time without a receive", "10s"
        ),
    ),
    "broker": (
        Key("default_encryption", "on, off: whether dialogs are encrypted by default", "on"),
        Key("honor_priority", "on, off: whether messages are sent by priority", "off"),
    ),
    "endpoint": (
        Key("state", "started, stopped, disabled"),
        Key("listen", "all, or addresses: 127.0.0.1,::1", many=True),
        Key("port", "0 to 65535"),
        Key("forwarding", "true, false: pass on messages for other instances"),
        Key("forward_size_mb", "memory for messages that pass through, in MB"),
        Key("drain", "time for connections to finish: 2s"),
    ),
}
"""Keys by kind of object, and of the broker endpoint. An object's name has no key: it is an
argument of its own."""


def sections(kind: str) -> set[str]:
    """Return the sections of a kind: the first parts of keys with a dot."""
    return {key.name.partition(".")[0] for key in KEYS[kind] if "." in key.name}


def check(kind: str, said: Mapping[str, Any]) -> None:
    """Check that each key exists for this kind, and that each value can be sent to a daemon.

    Raises:
        UsageError: a key does not exist, or a value cannot be sent; the hint lists the keys.
    """
    known = {key.name: key for key in KEYS[kind]}
    free = {key.name.partition(".")[0] for key in KEYS[kind] if key.any_below}
    for place, value in _flat(said):
        if isinstance(value, datetime | date | time):
            raise UsageError(
                f"{place}: {value} is a date, which no key takes",
                hint="give a duration such as 90s or 7d, or put the word in quotes",
            )
        top = place.partition(".")[0]
        if place in known or top in free or (place == top and top in sections(kind)):
            continue
        near = did_you_mean(place, known)
        what = "the name is the first word" if place == "name" else "there is no such key"
        hint = f"there is: {', '.join(names(kind))}"
        raise UsageError(f"{kind.replace('_', ' ')}: {place}: {what}{near}", hint=hint)


def names(kind: str) -> list[str]:
    """Return the names of all keys of a kind."""
    return [key.name for key in KEYS[kind]]


def lists(kind: str) -> set[str]:
    """Return the keys of a kind whose values may be written with commas."""
    return {key.name for key in KEYS[kind] if key.many}


def help_of(kind: str) -> str:
    """Return the keys of a kind as the text of a help page."""
    width = max(len(key.name) for key in KEYS[kind])
    defaults = any(key.default for key in KEYS[kind])
    lines = ["\b", "Keys, with their defaults:" if defaults else "Keys:"]
    for key in KEYS[kind]:
        default = f"  [{key.default}]" if key.default else ""
        lines.append(f"  {key.name.ljust(width)}  {without_rules(key.meaning)}{default}")
    return "\n".join(lines)


HOW: Final = """A VALUE is written as in a file of objects; quotes may be left out. @FILE means
the text of a file, and a list may be written with commas (a,b)."""


def _flat(said: Mapping[str, Any], under: str = "") -> Iterable[tuple[str, object]]:
    for key, value in said.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", value
