"""`brokerd store`: copies, backup (MAN-11), verification (HK-10), accepting a loss (REL-39)."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from brokerd.cli.options import daemon_options, json_option
from brokerd.cli.output import print_json, print_line, print_rows, warn
from brokerd.cli.session import ask
from brokerd.cli.store_accept_server import command as accept_server
from brokerd.cli.store_copy import command as copy
from brokerd.cli.store_follow import Wanted, follow
from brokerd.cli.store_restore import command as restore
from brokerd.cli.view_commands import duration, noun
from brokerd.client.session import Session
from brokerd.clock import SystemClock
from brokerd.config.loading import load
from brokerd.errors import StoreDamaged, UsageError
from brokerd.ids import RandomIds
from brokerd.process.exit_statuses import OK
from brokerd.storage.copying.moving import verify_place
from brokerd.storage.copying.places import is_url, place_of
from brokerd.storage.files.lock import is_held
from brokerd.storage.files.log_check import find_loss
from brokerd.storage.loss_acceptance import accept_loss
from brokerd.storage.verifying import Finding
from brokerd.units import counted, show_size

_OF_FOLLOWING: Final = ("every", "keep", "full_every")


@click.command(name="backup")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--follow",
    "is_following",
    is_flag=True,
    help="Keep FILE, a directory, in step with all stores of the instance, until SIGTERM.",
)
@click.option(
    "--every",
    metavar="DURATION",
    default="10s",
    show_default=True,
    help="With --follow: time between two increments.",
)
@click.option(
    "--keep",
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="With --follow: how far back every state can be restored.",
)
@click.option(
    "--full-every",
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="With --follow: time after which a change makes a new full copy.",
)
@daemon_options
@json_option
def _backup(
    *,
    file: Path,
    is_following: bool,
    every: str,
    keep: str,
    full_every: str,
    address: str | None,
    config: Path | None,
    broker: str,
    as_json: bool,
) -> int:
    """Order the running daemon to write a copy of a broker's store to the new file FILE.

    The copy has one consistent state of queues, dialogs, transmission queue and objects. It is
    verified as by `store verify` before it gets its name; master.key of the data directory is not
    in it. FILE is on the daemon's machine, below a
    directory in the setting store.backup_dirs or, by default, below `backups` in its data
    directory.

    With --follow, FILE is a directory for a backup chain: a full copy of every store of the
    instance, then what has changed since, every few seconds; with --broker, of that broker only.
    This reads the files of the stores, as the user of the daemon, and goes on while the daemon is
    stopped. After SIGTERM or SIGINT it adds what has changed, and ends. `store restore` rebuilds
    the stores.
    """
    given = click.get_current_context().get_parameter_source
    is_given = {name: given(name) is ParameterSource.COMMANDLINE for name in _OF_FOLLOWING}
    if is_following:
        wanted = Wanted(
            every=duration(every),
            keep=timedelta(seconds=duration(keep)),
            full_every=timedelta(seconds=duration(full_every)),
            broker=broker if given("broker") is ParameterSource.COMMANDLINE else None,
        )
        if address is not None:
            raise UsageError("--follow reads the stores: give -c, not --address")
        return follow(file.absolute(), load(config).settings, wanted, as_json=as_json)
    if any(is_given.values()):
        raise UsageError("--every, --keep and --full-every go with --follow")

    path = file.absolute()

    async def back_up(session: Session) -> int:
        return await session.admin.backup(path)

    size = ask(back_up, address=address, config=config, broker=broker)
    if as_json:
        print_json({"path": str(path), "bytes": size})
        return OK
    print_line(f"{path}: {show_size(size)}, verified")
    warn(
        "note: master.key is not in it, and without that the private keys and the keys of dialogs "
        "are lost: keep a copy of it apart from the backups"
    )
    return OK


class _Store(click.Path):
    """The type of an argument that names a store: a file, or a schema of a database."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Return a URL as it is, and the path of a file that exists."""
        return value if is_url(str(value)) else super().convert(value, param, ctx)


@click.command(name="verify")
@click.argument("store", type=_Store(exists=True, dir_okay=False))
@json_option
def _verify(*, store: str, as_json: bool) -> None:
    """Check a STORE, in use or not, for inconsistencies, and change nothing.

    STORE is a file, or 'postgresql://USER@HOST/DATABASE?schema=NAME'. Every row is compared with
    the rows it refers to, every body with its hash. Remains of ended dialogs are not damage: the
    next start deletes them. The pages of a server are checked by its own tool, pg_amcheck.
    """
    file = place_of(store)
    found = verify_place(file)
    if as_json:
        print_rows(found)
    else:
        for one in found:
            print_line(f"{one.table or 'file'}: {one.where}: {one.problem}")
    damage = [one for one in found if one.is_damage]
    if damage:
        raise StoreDamaged(
            f"{file} is not whole: {counted(len(damage), 'thing')} in it cannot be",
            hint=damage[0].cure
            or "put a backup in its place; what is damaged is set aside while it is in use",
        )
    if not as_json:
        print_line(f"{file}: {_soundness(found)}")


def _soundness(found: list[Finding]) -> str:
    """Return the verdict on a whole store, as far as its files show it."""
    text = "nothing is wrong"
    if any(one.is_unknown for one in found):
        text += " with what is there, but something may be missing"
    if any(one.is_left_over for one in found):
        text += "; the next start deletes what ended dialogs have left"
    return text


@click.command(name="accept-loss")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--yes", is_flag=True, help="Do it; without this, only show what is lost.")
@json_option
def _accept_loss(*, file: Path, yes: bool, as_json: bool) -> None:
    """Continue with the readable part of the damaged or missing log of the store FILE.

    The daemon does not open a store whose log lacks anything that was confirmed. Restore the log if
    you can. Otherwise this command keeps a copy of the log next to it, adds the readable part to
    the store, and lets the daemon open it; peers notice the loss at the first contact of each
    dialog. Run this as the user of the daemon, while no daemon has the store open.
    """
    loss = find_loss(file, is_in_use=is_held(file))
    accepted = None
    if yes and loss is not None:
        accepted = accept_loss(file, ids=RandomIds(), clock=SystemClock())
    if as_json:
        kept = str(accepted.kept) if accepted and accepted.kept else None
        problems = accepted.problems if accepted else []
        print_json({"loss": loss, "accepted": bool(accepted), "kept": kept, "problems": problems})
    elif loss is None:
        print_line(f"{file}: nothing is missing")
    elif accepted is not None:
        print_line(loss.show())
        print_line(f"accepted; the log as it was is kept in {accepted.kept or 'no file'}")
    if accepted is not None and accepted.problems:
        raise StoreDamaged(
            f"{file} is not whole: {'; '.join(accepted.problems)}",
            hint="put a backup in its place",
        )
    if loss is not None and accepted is None:
        raise StoreDamaged(
            f"{loss.show()}; nothing was changed",
            hint=loss.ways_on(file),
        )


command = noun(
    "store",
    "Stores: copies, backup, restore, verification, and continuing after a loss.",
    _backup,
    copy,
    restore,
    _verify,
    _accept_loss,
    accept_server,
)
