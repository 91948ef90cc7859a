"""`brokerd import`: read T-SQL scripts of Service Broker, and write what has their place (IMP).

Reads:  the scripts.      Calls: tsql, which is pure.
Never:  asks a daemon, imports or runs what it writes, or overwrites a file without --force.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from brokerd.cli.options import json_option
from brokerd.cli.output import print_json, print_line, quoted
from brokerd.errors import UsageError
from brokerd.tsql import assessment
from brokerd.tsql.translation import Translation, translate

MAX_SIZE: Final = 64 * 1024 * 1024
"""Largest size of a script, in bytes."""
OBJECTS: Final = "imported.objects.toml"
ASSESSMENT: Final = "assessment.md"
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@click.command(name="import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a file of objects, handlers and the assessment into this directory.",
)
@click.option("--force", is_flag=True, help="With --out: overwrite files that are there.")
@click.option("--markdown", is_flag=True, help="Print the assessment as Markdown.")
@json_option
def command(
    *, files: tuple[Path, ...], out: Path | None, force: bool, markdown: bool, as_json: bool
) -> None:
    """Read T-SQL scripts of Service Broker; write objects, handlers and an assessment.

    FILES are read in the order in which they would run; a directory stands for all scripts below
    it, by name. Statements that do not concern the broker
    are passed over; one that cannot be read is named with its line and does not stop the rest.
    Without --out the assessment is printed and nothing is written.

    With --out the directory gets imported.objects.toml for `brokerd apply`, a module in Python for
    each activated queue, with the T-SQL of its procedure as comment, the schemas of message types,
    and assessment.md.
    """
    if markdown and as_json:
        raise UsageError("--markdown and --json exclude each other", hint="give one of the two")
    made = translate([(str(path), _read(path)) for path in _scripts(files)])
    written = [] if out is None else _write(made, out, force=force)
    if as_json:
        print_json({**assessment.as_json(made.assessment), "written": list(map(str, written))})
    elif markdown:
        for line in assessment.markdown(made.assessment).splitlines():
            print_line(line)
    elif written:
        for path in written:
            print_line(f"wrote {path}")
        for remark in made.assessment.remarks:
            print_line(f"remark: {remark}")
        print_line(made.assessment.summary)
    else:
        for line in assessment.lines(made.assessment):
            print_line(line)


def _scripts(files: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the scripts: each file, and in place of a directory the scripts below it, by name."""
    for path in files:
        if not path.is_dir():
            yield path
            continue
        found = sorted(one for one in path.rglob("*") if one.suffix.lower() == ".sql")
        if not found:
            raise UsageError(f"{path}: no script below this directory ends in .sql")
        yield from found


def _read(path: Path) -> str:
    """Return the text of a script, in the encoding that its first bytes say.

    Without a byte order mark it is UTF-8; a script that is not is read as Windows-1252, as the
    tools of the server write it."""
    with path.open("rb") as file:
        data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise UsageError(
            f"{path}: larger than {MAX_SIZE >> 20} MiB", hint="split the script at a line with GO"
        )
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _write(made: Translation, out: Path, *, force: bool) -> list[Path]:
    """Write the files of an import; return their paths."""
    texts = {f"{name}.py": text for name, text in made.handlers.items()}
    if made.objects:
        texts[OBJECTS] = made.objects
    texts |= made.schemas
    texts[ASSESSMENT] = assessment.markdown(made.assessment)
    paths = {out / name: text for name, text in texts.items()}
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise UsageError(
            f"{there[0]} is there already",
            hint=f"choose another directory than {quoted(str(out))}, or add --force to overwrite",
        )
    out.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
    return list(paths)
