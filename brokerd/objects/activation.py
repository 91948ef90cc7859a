"""The section `[queue.activation]` of a file of objects (OBJ-39, OBJ-60, ACT-20). PURE.

Reads:  decoded TOML.      Calls:  keys, config.toml_file, units.
Never:  looks anything up in a store, or imports a handler.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from brokerd.config.toml_file import Problems, unknown_keys
from brokerd.errors import ActivationIncomplete
from brokerd.model import OWNER, Activation, Host
from brokerd.objects.keys import read_duration, read_number
from brokerd.units import parse_size, show_duration, show_size

KEYS: Final = (
    "handler",
    "command",
    "host",
    "max_readers",
    "status",
    "run_as",
    "memory",
    "deadline",
    "ramp_interval",
    "initial_readers",
    "drain_wait",
    "spare",
)
MAX_READERS: Final = 32_767
"""Largest number of readers of a queue (OBJ-39)."""
_HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HOSTS: Final = [host.value for host in Host]
_TOLD: Final = (
    "host",
    "memory",
    "deadline",
    "ramp_interval",
    "initial_readers",
    "drain_wait",
    "spare",
)
_LEAST_MEMORY: Final = 64 * 1024**2


def read_activation(
    at: str, table: object, problems: Problems, *, enabled: bool, spare: bool
) -> Activation | None:
    """Return the activation that a section declares; add errors to `problems`.

    `enabled` and `spare`: the values of the keys `status` and `spare`, read by the caller. Return
    None if the queue has no such section.
    """
    # Every check continues with a usable value after a problem, so that one reading of a file finds
    # all of its problems (BI-C3).
    if table is None:
        return None
    if not isinstance(table, dict):
        problems.add(at, "is a section: write [queue.activation] below the queue")
        return None
    unknown_keys(table, KEYS, under=at, problems=problems)
    handler, command = table.get("handler"), table.get("command")
    host = table.get("host", (Host.DAEMON if command is None else Host.PROCESS).value)
    if host not in _HOSTS:
        problems.add(f"{at}.host", f"is one of {', '.join(_HOSTS)} (ACT-20)")
        host = Host.DAEMON.value
    if command is not None:
        _check_command(at, table, problems)
    elif not isinstance(handler, str) or not _HANDLER.fullmatch(handler):
        problems.add(
            f"{at}.handler", 'write "package.module:function" (OBJ-60)', error=ActivationIncomplete
        )
        handler = ""
    run_as = table.get("run_as", OWNER)
    if not isinstance(run_as, str) or not run_as:
        problems.add(f"{at}.run_as", "the name of a principal (OBJ-60)", error=ActivationIncomplete)
        run_as = OWNER
    return Activation(
        handler=handler if isinstance(handler, str) else "",
        max_readers=_readers(at, "max_readers", table, problems, least=0, rule="OBJ-39"),
        enabled=enabled,
        run_as=run_as,
        host=Host(host),
        command=tuple(command) if isinstance(command, list) else (),
        memory=_memory(at, table, problems),
        deadline=_duration(at, "deadline", table, problems, or_off=True),
        ramp_interval=_duration(at, "ramp_interval", table, problems),
        initial_readers=_readers(at, "initial_readers", table, problems, least=1, rule="PBT-7"),
        drain_wait=_drain_wait(at, table, problems),
        spare=spare,
    )


def describe_activation(activation: Activation) -> dict[str, Any]:
    """Return the section that declares an activation; leave out most keys with default values."""
    usual = Activation("")
    made: dict[str, Any] = {}
    if activation.command:
        made["command"] = list(activation.command)
    else:
        made["handler"] = activation.handler
        if activation.host is not usual.host:
            made["host"] = activation.host.value
    made["max_readers"] = activation.max_readers
    made["status"] = "on" if activation.enabled else "off"
    made["run_as"] = activation.run_as
    if activation.memory != usual.memory:
        made["memory"] = show_size(activation.memory)
    if activation.deadline is not None:
        made["deadline"] = show_duration(timedelta(microseconds=activation.deadline))
    if activation.ramp_interval is not None:
        made["ramp_interval"] = show_duration(timedelta(microseconds=activation.ramp_interval))
    if activation.initial_readers != usual.initial_readers:
        made["initial_readers"] = activation.initial_readers
    if activation.drain_wait != usual.drain_wait:
        made["drain_wait"] = show_duration(timedelta(microseconds=activation.drain_wait))
    if not activation.spare:
        made["spare"] = "off"
    return made


def activation_words(activation: Activation | None) -> str:
    """Return an activation in words, for the sentence about a change."""
    if activation is None:
        return "none"
    said = describe_activation(activation)
    rest = [f"max_readers {activation.max_readers}"]
    rest += [] if activation.run_as == OWNER else [f"run_as {activation.run_as}"]
    rest += [f"{key} {said[key]}" for key in _TOLD if key in said]
    rest += [] if activation.enabled else ["off"]
    return f"{activation.procedure} ({', '.join(rest)})"


def _check_command(at: str, table: Mapping[str, object], problems: Problems) -> None:
    command = table.get("command")
    words = command if isinstance(command, list) else []
    if not words or not all(isinstance(word, str) and word for word in words):
        problems.add(
            f"{at}.command", 'a list of texts: ["program", "argument"]', error=ActivationIncomplete
        )
    if "handler" in table:
        problems.add(f"{at}.command", "give a handler or a command, not both")
    if table.get("host", Host.PROCESS.value) != Host.PROCESS.value:
        problems.add(f"{at}.host", "a command is a process (ACT-20)")


def _memory(at: str, table: Mapping[str, object], problems: Problems) -> int:
    given = table.get("memory")
    if given is None:
        return Activation("").memory
    try:
        size = parse_size(given)
    except ValueError as error:
        problems.add(f"{at}.memory", f"a size such as 1GiB, or 0: {error}")
        return 0
    if size and size < _LEAST_MEMORY:
        problems.add(f"{at}.memory", "at least 64MiB, or 0 for no limit")
    return size


def _readers(
    at: str, key: str, table: Mapping[str, object], problems: Problems, *, least: int, rule: str
) -> int:
    return read_number(
        table.get(key, 1),
        partial(problems.add, f"{at}.{key}"),
        least=least,
        most=MAX_READERS,
        usual=1,
        problem=f"a number from {least} to {MAX_READERS} ({rule})",
    )


def _duration(
    at: str,
    key: str,
    table: Mapping[str, object],
    problems: Problems,
    *,
    least: timedelta = timedelta(seconds=1),
    or_off: bool = False,
) -> int | None:
    report = partial(problems.add, f"{at}.{key}")
    return read_duration(table.get(key), report, least=least, or_off=or_off)


def _drain_wait(at: str, table: Mapping[str, object], problems: Problems) -> int:
    value = _duration(at, "drain_wait", table, problems, least=timedelta(0))
    return Activation("").drain_wait if value is None else value
