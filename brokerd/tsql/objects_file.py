"""The file of objects: what `brokerd apply` takes, with what could not be said as comment. PURE.

Reads:  the objects that `declaring` has left.      Calls: queues, routes, objects.declarations.
Never:  writes an object that the daemon would refuse: such a one is a comment, and its entry in the
        assessment says why (IMP-10).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from brokerd.errors import BrokerError
from brokerd.model import (
    ANY,
    CONFIGURATION_NOTICE,
    DEFAULT,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    POST_EVENT_NOTIFICATION,
    SYSTEM_PREFIX,
    SYSTEM_TYPES,
)
from brokerd.objects.declarations import BROKER_NAME, parse
from brokerd.tsql import queues, routes
from brokerd.tsql.blocks import Block, quoted, table_lines, usable, value_text
from brokerd.tsql.declaring import MSDB, Declared, Declaring, Objects
from brokerd.tsql.names import ours, shown
from brokerd.units import printable

BUILT_IN: Final = (DEFAULT, POST_EVENT_NOTIFICATION, CONFIGURATION_NOTICE)
"""Contracts that every broker has."""


class Broker(Struct):
    """The tables of one broker."""

    name: str
    database: str
    options: dict[str, Any]
    blocks: list[Block]


def text_of(brokers: list[Broker], instance_routes: list[Block], *, source: str) -> str:
    """Return the text of the file."""
    lines = [
        f"# Objects of {printable(source)}, made by brokerd import.",
        "# Read the assessment first: what it says needs a hand is not complete here.",
        "#",
        "#   is it right?         brokerd config check THIS_FILE",
        "#   what would change?   brokerd apply THIS_FILE --dry-run",
        "#   make it so:          brokerd apply THIS_FILE",
        "",
    ]
    several = len(brokers) > 1
    for broker in brokers:
        lines.append("[[broker]]" if several else "[broker]")
        lines.append(f"name = {quoted(broker.name)}")
        if broker.database and broker.database != broker.name:
            lines[-1] += f"  # database {printable(broker.database)}"
        lines += [f"{key} = {value_text(value)}" for key, value in broker.options.items()]
        lines.append("")
        for block in broker.blocks:
            lines += [*table_lines(block, "broker." if several else ""), ""]
    for block in instance_routes:
        lines += [*table_lines(block, ""), ""]
    return "\n".join(lines)


def problems_of(brokers: list[Broker], instance_routes: list[Block]) -> str:
    """Return why the daemon would refuse the file; empty = it would not."""
    tables = []
    for broker in brokers:
        table: dict[str, Any] = {"name": broker.name, **broker.options}
        for block in broker.blocks:
            if block.is_active:
                table.setdefault(block.kind, []).append(block.table)
        tables.append(table)
    said: dict[str, Any] = {"broker": tables}
    active = [block.table for block in instance_routes if block.is_active]
    if active:
        said["instance_route"] = active
    try:
        parse(said)
    except BrokerError as error:
        return error.message
    return ""


# The objects of one broker.


def broker_of(home: Objects, name: str, declaring: Declaring, handlers: dict[str, str]) -> Broker:
    """Return the tables of a database; `handlers`: the module of each activated queue."""
    types, assumed = _message_types(home, declaring)
    contracts = list(_contracts(home, types, assumed))
    known_contracts = {block.table["name"] for block in contracts if block.is_active}
    queue_blocks = list(queues.queue_blocks(home, handlers))
    services = list(_services(home, known_contracts, queue_blocks))
    known_services = {
        block.table["name"]: block.table["contracts"] for block in services if block.is_active
    }
    blocks = [
        *types.values(),
        *assumed.values(),
        *contracts,
        *queue_blocks,
        *services,
        *_priorities(home, known_contracts, known_services),
        *(() if home.database.casefold() == MSDB else routes.route_blocks(home)),
        *routes.binding_blocks(home),
        *routes.notification_blocks(home, queue_blocks, known_services),
    ]
    options: dict[str, Any] = {}
    if "HONOR_BROKER_PRIORITY ON" in home.options:
        options["honor_priority"] = True
    return Broker(name, home.database, options, blocks)


def broker_name(database: str, taken: set[str]) -> str:
    """Return the name of the broker for a database; it is added to `taken`."""
    plain = "".join(
        one if one.isascii() and (one.isalnum() or one in "_.-") else "_" for one in database
    )
    plain = plain.lstrip("_.-")[:60] or "main"
    if plain.casefold() == "msdb":
        plain = "from_msdb"
    name, number = plain, 1
    while name.casefold() in taken or not BROKER_NAME.fullmatch(name):
        number += 1
        name = f"{plain}_{number}"
    taken.add(name.casefold())
    return name


def _message_types(
    home: Objects, declaring: Declaring
) -> tuple[dict[str, Block], dict[str, Block]]:
    """Return the declared types by name, and the undeclared ones that contracts name."""
    found: dict[str, Block] = {}
    for name, declared in home.message_type.items():
        if _is_built_in(name, declared) or not usable(name, declared, "message type"):
            continue
        validation = (declared.said.validation or "NONE").lower()
        block = Block("message_type", {"name": name, "validation": validation})
        if validation == "valid_xml":
            block.table["validation"] = "well_formed_xml"
            file = declaring.schema_file(declared.said.schema_collection or ("",))
            block.hints = [
                'to check more: validation = "valid_xml"',
                f"schema_file = {quoted(file)}",
            ]
            declared.entry.needs(
                "checked for well-formed XML alone, because a schema needs brokerd[schemas]: with "
                f'it, give validation = "valid_xml" and schema_file = "{file}"'
            )
        found[name] = block
    assumed: dict[str, Block] = {}
    for declared in home.contract.values():
        for name, _ in declared.said.types:
            kind = ours(name)
            if kind in (DEFAULT, *SYSTEM_TYPES) or kind.startswith(SYSTEM_PREFIX):
                continue
            if kind in found or kind in assumed or not usable(kind, declared, "message type"):
                continue
            near = _other_case(kind, found)
            declared.entry.needs(
                f'no script creates message type "{kind}"'
                + (f', but one creates "{near}": names are compared byte by byte' if near else "")
                + "; it is declared without validation"
            )
            remark = "No script creates this message type; a contract names it."
            assumed[kind] = Block("message_type", {"name": kind, "validation": "none"}, [remark])
    return found, assumed


def _contracts(
    home: Objects, types: dict[str, Block], assumed: dict[str, Block]
) -> Iterator[Block]:
    for name, declared in home.contract.items():
        if _is_built_in(name, declared) or not usable(name, declared, "contract"):
            continue
        senders: dict[str, str] = {}
        for said, sender in declared.said.types:
            kind = ours(said)
            if kind in SYSTEM_TYPES:
                declared.entry.add(f"{kind} is part of every contract")
            elif kind == DEFAULT or kind in types or kind in assumed:
                senders[kind] = sender
        block = Block("contract", {"name": name, "types": senders})
        if set(senders.values()) <= {"target"}:
            block.is_active = False
            declared.entry.needs("not in the file: its initiator could send nothing")
        yield block


def _services(home: Objects, contracts: set[str], queues: list[Block]) -> Iterator[Block]:
    names = {block.table["name"].casefold(): block.table["name"] for block in queues}
    for name, declared in home.service.items():
        if not usable(name, declared, "service"):
            continue
        if ours(name).startswith(SYSTEM_PREFIX):
            declared.entry.add("every broker has it")
            continue
        queue = shown(declared.said.queue or ("",))
        block = Block("service", {"name": name})
        home_queue = names.get(queue.casefold())
        if home_queue is None and usable(queue, declared, "queue"):
            declared.entry.needs(f'no script creates queue "{queue}": it is declared as usual')
            remark = "No script creates this queue; a service names it."
            made = Block("queue", {"name": queue}, [remark])
            queues.append(made)
            names[queue.casefold()] = home_queue = queue
        if home_queue is None:
            block.is_active = False
        block.table["queue"] = home_queue or queue
        accepted = []
        for said in declared.said.contracts:
            contract = ours(said)
            if contract in contracts or contract in BUILT_IN:
                accepted.append(contract)
                continue
            near = _other_case(contract, contracts)
            declared.entry.needs(
                f'contract "{contract}" is not declared'
                + (f', but "{near}" is: names are compared byte by byte' if near else "")
                + ", so the service does not list it"
            )
        block.table["contracts"] = accepted
        yield block


def _priorities(
    home: Objects, contracts: set[str], services: dict[str, list[str]]
) -> Iterator[Block]:
    first: dict[object, str] = {}
    for name, declared in home.priority.items():
        said = declared.said
        if not usable(name, declared, "priority"):
            continue
        criteria = (
            ours(said.contract or ANY),
            said.local_service or ANY,
            said.remote_service or ANY,
        )
        level = 5 if said.level is None else said.level
        table = {
            "name": name,
            "contract": criteria[0],
            "local_service": criteria[1],
            "remote_service": criteria[2],
            "level": level,
        }
        block = Block("priority", table)
        why = ""
        if criteria[0] not in (ANY, DEFAULT) and criteria[0] not in contracts:
            why = f'contract "{criteria[0]}" is not declared'
        elif criteria[1] != ANY and criteria[1] not in services:
            why = f'service "{criteria[1]}" is not declared'
        elif not LOWEST_PRIORITY <= level <= HIGHEST_PRIORITY:
            why = "a level is a number from 1 to 10"
        elif criteria in first:
            why = f'priority "{first[criteria]}" has the same criteria'
        if why:
            block.is_active = False
            declared.entry.needs(f"a comment in the file: {why}")
        else:
            first[criteria] = name
        yield block


def _is_built_in(name: str, declared: Declared) -> bool:
    if ours(name) == DEFAULT or ours(name).startswith(SYSTEM_PREFIX):
        declared.entry.ours = ours(name)
        declared.entry.add("every broker has it")
        return True
    return False


def _other_case(name: str, known: Mapping[str, object] | set[str]) -> str:
    return next((one for one in known if one.casefold() == name.casefold()), "")
