"""`brokerd store restore`: rebuilds stores from a backup chain, or lists it (REL-48, REL-49)."""

from datetime import UTC, datetime
from pathlib import Path

import click

from brokerd.cli.options import json_option
from brokerd.cli.output import print_json, print_line, print_rows, quoted, table, warn
from brokerd.cli.store_follow import ShownProgress, size
from brokerd.clock import SystemClock
from brokerd.errors import BackupFailed, RestoreFailed, UsageError
from brokerd.ids import RandomIds
from brokerd.model import MSDB
from brokerd.storage.backup_chain.chain_files import read_chain, read_last_look
from brokerd.storage.backup_chain.manifests import Generation
from brokerd.storage.backup_chain.restoring import Restored, restore
from brokerd.units import counted


@click.command(name="restore")
@click.argument(
    "chain", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.argument("target", type=click.Path(path_type=Path), required=False)
@click.option(
    "--at",
    metavar="TIME",
    help="Restore the newest state with nothing later than this: 2026-11-27T12:00:00Z; without "
    "a zone, UTC.  [default: the newest state]",
)
@click.option("--broker", "brokers", multiple=True, help="Restore this broker only; repeatable.")
@click.option("--list", "is_list", is_flag=True, help="List the states in DIR; restore nothing.")
@click.option("--verify", "with_hashes", is_flag=True, help="With --list: read and check all.")
@json_option
def command(
    *,
    chain: Path,
    target: Path | None,
    at: str | None,
    brokers: tuple[str, ...],
    is_list: bool,
    with_hashes: bool,
    as_json: bool,
) -> None:
    """Rebuild stores from the backup chain DIR in the directory TARGET, without a daemon.

    DIR is the directory of `store backup DIR --follow`, or a copy of it. TARGET is the data
    directory of a stopped daemon, or a new directory. Each store is verified before it gets its
    name, and gets a new incarnation. No file is replaced: move old stores away first.

    Run this as the user of the daemon. master.key and the settings are not in a backup.
    """
    if is_list:
        if target is not None or at or brokers:
            raise UsageError("--list goes with DIR, and with nothing to restore")
        _list(chain, with_hashes=with_hashes, as_json=as_json)
        return
    if target is None:
        raise UsageError(
            "name the directory to restore to",
            hint=f"brokerd store restore {quoted(str(chain))} TARGET; --list shows what there is",
        )
    if with_hashes:
        raise UsageError("--verify goes with --list", hint="a restore verifies what it restores")
    done = restore(
        chain,
        target,
        at=None if at is None else _time(at),
        brokers=brokers,
        ids=RandomIds(),
        clock=SystemClock(),
        progress=ShownProgress(),
    )
    if as_json:
        print_json(done)
        return
    for line in _lines(done):
        print_line(line)
    warn("note: master.key and the settings are not in a backup: put them in place as well")


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text!r} is no time", hint="2026-11-27T12:00:00Z, or without Z, in UTC"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _lines(done: Restored) -> list[str]:
    lines = [
        f"restored the state of {_show(done.taken_at)} ({done.generation}, piece {done.number}):",
        *(
            f"  {one.broker}: {one.path}, {size(one.size)}, verified, new incarnation "
            f"{one.incarnation}"
            for one in done.stores
        ),
        f"all that was confirmed before {_show(done.began_at)} is in it",
    ]
    if done.last_look is not None:
        lines.append(
            f"nothing had changed until {_show(done.last_look.looked_at)}; what was confirmed "
            "after that is lost"
        )
    else:
        lines.append(f"what was confirmed after {_show(done.taken_at)} is lost")
    if done.newest_at > done.taken_at:
        lines.append(f"the newest state in the backup is of {_show(done.newest_at)}")
    if not done.is_one_moment:
        lines.append(
            "the stores are some milliseconds apart: dialogs between these brokers may end with "
            "history_lost"
        )
    lines.extend(
        f"for a clean break with its peers, after the start: "
        f"brokerd broker error-conversations {quoted(one.broker)}"
        for one in done.stores
        if one.broker != MSDB
    )
    return lines


def _show(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


def _list(chain: Path, *, with_hashes: bool, as_json: bool) -> None:
    found = read_chain(chain, with_hashes=with_hashes, progress=ShownProgress())
    if not found:
        raise BackupFailed(
            f"{chain} has no backup chain",
            hint="give the directory of brokerd store backup DIR --follow",
        )
    rows = [row for generation in found for row in _rows(generation)]
    problems = [one.problem for one in found if one.problem]
    look = read_last_look(chain)
    if as_json:
        print_rows(rows)
    else:
        names = ("taken_at", "generation", "number", "kind", "stores")
        cells = [[*(row[name] for name in names), size(int(str(row["bytes"])))] for row in rows]
        table("states", ("taken at", "generation", "piece", "kind", "stores", "size"), cells)
        if look is not None:
            print_line(f"the follower last looked at {_show(look.looked_at)}")
    for problem in problems:
        warn(f"{problem}")
    if problems:
        raise RestoreFailed(
            f"{chain} is not whole: {counted(len(problems), 'generation')} cannot be rebuilt to "
            "the end",
            hint="the states that are listed can be restored; put the file back to restore later "
            "ones",
        )


def _rows(generation: Generation) -> list[dict[str, object]]:
    return [
        {
            "taken_at": _show(manifest.taken_at),
            "began_at": _show(manifest.began_at),
            "generation": manifest.generation,
            "number": manifest.number,
            "kind": "increment" if manifest.number else "full",
            "stores": ", ".join(one.broker for one in manifest.stores if one.file),
            "bytes": manifest.size,
        }
        for manifest in (piece.manifest for piece in generation.pieces)
    ]
