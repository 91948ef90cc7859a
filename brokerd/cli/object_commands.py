"""`brokerd queue`, `brokerd service` and others: one declared object at a time (CLP-81).

Calls:  the session's `objects`, `create`, `alter` and `drop`; one implementation for every noun.
Never:  checks a value: KEY=VALUE means the same as in a file, and the daemon checks it.
"""

import tomllib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from brokerd.cli import object_keys
from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line, print_rows, table
from brokerd.cli.session import ask
from brokerd.client.session import Session
from brokerd.clock import Instant, show_instant
from brokerd.errors import ObjectNotFound, UsageError

_SETTINGS = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
_TERMINATE = click.option(
    "--terminate-existing",
    is_flag=True,
    help="End the dialogs that need the object, and notify their other sides of the reason.",
)
_SHOWN: Final = {
    "message_type": ("validation", "require_body", "validate_on_send"),
    "contract": ("types",),
    "queue": ("status", "retention", "poison_handling", "poison_mode", "activation"),
    "service": ("queue", "contracts"),
    "priority": ("contract", "local_service", "remote_service", "level"),
    "remote_service_binding": ("service", "principal", "anonymous"),
    "route": ("service", "broker", "address", "mirror", "principal", "expires_at"),
    "instance_route": ("service", "broker", "address", "mirror", "principal", "expires_at"),
}
_LIVE: Final = {"route": "routes", "instance_route": "instance_routes"}
"""Views with the present state of objects, for kinds that have one (RTE-57, RTE-65)."""


_MORE: Final = {"queue": " activation=drop removes the whole activation."}


def settings_of(kind: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings in KEY=VALUE words, in which a key may have dots.

    A value is written as in a file of objects, or as plain text. `@FILE` means the text of a file;
    a list may be written with commas; a missing value is None.
    """
    said: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"{word!r} is no KEY=VALUE", hint=f"there is: {', '.join(object_keys.names(kind))}"
            )
        _merge(said, _parsed(key.strip(), value))
    for key in object_keys.lists(kind) & said.keys():
        if isinstance(said[key], str):
            said[key] = [one for one in said[key].split(",") if one]
    object_keys.check(kind, said)
    return said


def _parsed(key: str, value: str) -> dict[str, Any]:
    if value.startswith("@"):
        value, plain = _text_of(Path(value[1:]), key), True
    else:
        plain = False
    try:
        marked = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise UsageError(
            f"{key!r} is no key", hint='put quotes around a name with dots: types."a.b"=any'
        ) from None
    if not value and not plain:
        return _filled(marked, None)
    if not plain:
        try:
            return tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            pass  # a plain word
    return _filled(marked, value)


def _text_of(file: Path, key: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"{key}: {file} is not a text in UTF-8", hint=f"iconv -f UTF-16 -t UTF-8 {file}"
        ) from None


def _filled(marked: dict[str, Any], value: str | None) -> dict[str, Any]:
    ((key, below),) = marked.items()
    return {key: _filled(below, value) if isinstance(below, dict) else value}


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif key in into:
            raise UsageError(f"{key} is said twice", hint="leave one of them out")
        else:
            into[key] = value


def plural(kind: str) -> str:
    """Return the plural of a kind of object as words: message types, priorities."""
    words = kind.replace("_", " ")
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _one(kind: str) -> str:
    words = kind.replace("_", " ")
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _noun(kind: str, name: str = "") -> click.Group:
    """Return the group of commands for one kind of objects; `name`: if it is not the kind's."""
    group = click.Group(
        name=name or kind.replace("_", "-"), help=f"Create, alter, drop and show {plural(kind)}."
    )
    for make in (_create, _alter, _drop, _ls, _show):
        group.add_command(make(kind))
    return group


def _create(kind: str) -> click.Command:
    text = f"Create {_one(kind)}.\n\n{object_keys.HOW}\n\n{object_keys.help_of(kind)}"

    @click.command(name="create", help=text)
    @click.argument("name")
    @_SETTINGS
    @daemon_options
    @json_option
    def command(name: str, settings: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
        said = settings_of(kind, settings)
        given = {key: one for key, one in said.items() if one is not None}
        change(lambda session: session.create(kind, name, **given), **options)

    return command


def _alter(kind: str) -> click.Command:
    text = (
        f"Alter {_one(kind)}: only the given keys change. KEY= without a value sets a key "
        f"to its default.{_MORE.get(kind, '')}\n\n{object_keys.HOW}\n\n{object_keys.help_of(kind)}"
    )

    @click.command(name="alter", help=text)
    @click.argument("name")
    @_SETTINGS
    @_TERMINATE
    @daemon_options
    @json_option
    def command(
        name: str,
        settings: tuple[str, ...],
        terminate_existing: bool,
        **options: Any,  # noqa: ANN401
    ) -> None:
        said = settings_of(kind, settings)
        if not said:
            raise UsageError("nothing is said to alter", hint="say KEY=VALUE; --help has the keys")
        change(
            lambda session: session.alter(
                kind, name, terminate_existing=terminate_existing, **said
            ),
            **options,
        )

    return command


def _drop(kind: str) -> click.Command:
    @click.command(name="drop", help=f"Drop {_one(kind)}; refused while something needs it.")
    @click.argument("name")
    @_TERMINATE
    @daemon_options
    @json_option
    def command(name: str, terminate_existing: bool, **options: Any) -> None:  # noqa: ANN401
        change(
            lambda session: session.drop(kind, name, terminate_existing=terminate_existing),
            **options,
        )

    return command


def _ls(kind: str) -> click.Command:
    @click.command(name="ls", help=f"List the {plural(kind)} of a broker.")
    @daemon_options
    @json_option
    def command(as_json: bool, **options: Any) -> None:  # noqa: ANN401
        found = ask(partial(_list, kind), **options)
        if as_json:
            print_rows(found)
            return
        columns = ("name", *_SHOWN[kind])
        cells = [[_shown(key, one.get(key)) for key in columns] for one in found]
        table(plural(kind), columns, cells)

    return command


async def _list(kind: str, session: Session) -> list[dict[str, object]]:
    """Return the objects as a file would declare them; routes also with expiry and principal."""
    found = await session.objects(kind)
    if kind not in _LIVE:
        return found
    rows = {row["name"]: row for row in await session.view(_LIVE[kind])}
    more = (("expires_at", "lifetime"), ("principal", "current_principal"))
    return [
        {**one, **{key: rows.get(one["name"], {}).get(column) for key, column in more}}
        for one in found
    ]


def _show(kind: str) -> click.Command:
    @click.command(name="show", help=f"Show {_one(kind)} as a file declares it.")
    @click.argument("name")
    @daemon_options
    @json_option
    def command(name: str, as_json: bool, **options: Any) -> None:  # noqa: ANN401
        one = declared(kind, name, **options)
        if as_json:
            print_json(one)
            return
        present(one)

    return command


def declared(kind: str, name: str, **options: Any) -> dict[str, object]:  # noqa: ANN401
    """Return one object as a file would declare it, with its kind; raise `ObjectNotFound`."""
    found = ask(lambda session: session.objects(kind), **options)
    one = next((one for one in found if one["name"] == name), None)
    if one is None:
        raise ObjectNotFound(f"there is no {kind.replace('_', ' ')} {name!r} in this broker")
    return one


def present(one: Mapping[str, object]) -> None:
    """Print an object, one line for each key."""
    for key, value in one.items():
        if key != "kind":
            print_line(f"{key}: {_cell(value)}")


def change(
    work: Callable[[Session], Awaitable[list[object]]],
    *,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> None:
    """Request a change, and print the changes made."""
    changes = ask(work, address=address, config=config, broker=broker)
    if as_json:
        print_rows(changes)
        return
    for change in changes:
        print_line(str(change["sentence"]) if isinstance(change, dict) else str(change))
    if not changes:
        print_line("no change needed")


def _shown(key: str, value: object) -> str:
    if key == "expires_at" and isinstance(value, int):
        return show_instant(Instant(value))
    return _cell(value)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case dict():
            return ", ".join(f"{key}={_cell(one)}" for key, one in value.items())
        case list():
            return ", ".join(map(str, value)) or "-"
        case _:
            return str(value)


message_type = _noun("message_type")
contract = _noun("contract")
queue = _noun("queue")
service = _noun("service")
route = _noun("route")
instance_route = _noun("instance_route")
priority = _noun("priority")
binding = _noun("remote_service_binding", "binding")
