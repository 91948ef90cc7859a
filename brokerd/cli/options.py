"""Options that several commands share: which configuration, which daemon, JSON."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from brokerd.config import load

CONFIG_VARIABLE: Final = "BROKERD_CONFIG"
ADDRESS_VARIABLE: Final = "BROKERD_ADDRESS"

_Command = TypeVar("_Command", bound=Callable[..., Any])

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_VARIABLE,
    help=f"Settings of the daemon (TOML); or set {CONFIG_VARIABLE}.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
broker_option = click.option(
    "--broker", default="main", show_default=True, help="Which broker of the instance."
)


def daemon_options(command: _Command) -> _Command:
    """The options that say which daemon to talk to: `address`, `config` and `broker`."""
    address = click.option(
        "--address",
        metavar="unix:PATH|TCP://HOST:PORT",
        help=f"Where the daemon listens for clients; or set {ADDRESS_VARIABLE}, or give -c.",
    )
    return address(config_option(broker_option(command)))


def daemon_address(address: str | None, config: Path | None) -> str:
    """Where the daemon is: as said, else as its settings say, else from the environment.

    Raises:
        ConfigError: the settings file is wrong.
    """
    if address:
        return address
    if config:
        return load(config).settings.client_address
    if named := os.environ.get(ADDRESS_VARIABLE):
        return named
    return load(None).settings.client_address
