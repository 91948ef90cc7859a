"""`brokerd config`: check files without starting anything; show every effective setting."""

import importlib
import inspect
import sys
from pathlib import Path

import click

from brokerd.cli.options import config_option, json_option
from brokerd.cli.output import print_json, say, table
from brokerd.config import effective, load
from brokerd.declarations import read
from brokerd.errors import ConfigError
from brokerd.objects import Declared


@click.group(name="config")
def command() -> None:
    """Check a configuration, or show what is in effect."""


@command.command()
@config_option
@json_option
def show(config: Path | None, as_json: bool) -> None:
    """Every setting, its value, and where it comes from."""
    rows = effective(load(config))
    if as_json:
        print_json([{"key": key, "value": value, "origin": at} for key, value, at in rows])
    else:
        table("effective settings", ("key", "value", "origin"), rows)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--objects",
    type=click.Path(path_type=Path),
    help="Check this file of declared objects as well, and that its handlers can be imported.",
)
def check(file: Path, objects: Path | None) -> None:
    """Check settings (and objects) without starting, connecting or binding anything.

    FILE may be the settings of a daemon or, with a name that ends in .objects.toml, its objects.
    """
    if file.name.endswith("objects.toml") and objects is None:
        _check_objects(file)
        return
    errors = []
    try:
        load(file)
    except ConfigError as error:
        errors.append(error)
    else:
        say(f"{file}: the settings are usable")
    if objects is not None:
        try:
            _check_objects(objects)
        except ConfigError as error:
            errors.append(error)
    if errors:
        text = "\n".join(error.message for error in errors)
        raise ConfigError(text, hint=errors[0].hint)


def _check_objects(path: Path) -> None:
    _, declared = read(path)
    problems = handler_problems(declared)
    if problems:
        what = f"{path}: handlers cannot be used"
        raise ConfigError(
            "\n".join([what, *problems]),
            hint="they are looked for in this directory and among the installed packages",
        )
    for warning in declared.warnings:
        say(f"{path}: warning: {warning}")
    say(f"{path}: the objects are usable")


def handler_problems(declared: Declared) -> list[str]:
    """What is wrong with the handlers of the queues: not there, not importable, not async (BI-C5).

    Imports them, so the code of their modules runs.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    problems = []
    for queue in declared.queues.values():
        if queue.activation:
            problem = _handler_problem(queue.activation.handler)
            if problem:
                problems.append(f"queue {queue.name}: {queue.activation.handler}: {problem}")
    return problems


def _handler_problem(path: str) -> str:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # whatever the module does, it is the finding
        return f"importing {module} raises {type(error).__name__}: {error}"
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        return f"{module} has no {name}"
    if not callable(found):
        return "it cannot be called"
    is_async = inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(
        getattr(found, "__call__", None)  # noqa: B004  # an object with an async __call__
    )
    return "" if is_async else "it is not async (ACT-20)"
