"""Real traffic under faults: `make chaos` (MINUTES=10 RUNS=1 SEED=1 FORM=two STREAM=DIR).

Exit status 0: all runs are clean; 1: something was found, which is told with the seed and the
command that repeats it, and the files of that run are kept; 2: wrong words or values; 130: it was
interrupted, and its processes are gone.
"""

import argparse
import asyncio
import fcntl
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

from tests.chaos.report import Report, show_json, show_table
from tests.chaos.run import Options, clear, run
from tests.chaos.schedule import Form, Kind
from tests.chaos.stream import Stream

INTERRUPTED: Final = 130


def main() -> int:
    options = _parsed()
    reports = []
    for seed in range(options.seed, options.seed + options.runs):
        folder = (options.dir / f"seed-{seed}-{options.form}").absolute()
        _say(f"seed {seed}, {options.form}, files in {folder}")
        try:
            with _alone(folder):
                shutil.rmtree(folder, ignore_errors=True)
                report = uvloop.run(_interruptible(folder, seed, options))
        except BlockingIOError:
            _say(f"{folder} belongs to a run that goes on; name another directory with --dir")
            return 2
        except asyncio.CancelledError:
            _say("interrupted")
            return INTERRUPTED
        reports.append(report)
        for problem in report.problems:
            _say(f"FOUND: {problem}")
        _say(_repeats(report, options) if report.problems else f"seed {seed}: clean")
        clear(report)
    if options.json:
        sys.stdout.buffer.write(show_json(reports))
    else:
        sys.stdout.write(f"{show_table(reports)}\n")
    return 1 if any(one.problems for one in reports) else 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else runs there meanwhile; `BlockingIOError` if somebody does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


async def _interruptible(folder: Path, seed: int, options: argparse.Namespace) -> Report:
    """A run that ends its processes also when this one is asked to end."""
    task = asyncio.ensure_future(
        run(
            folder,
            Options(
                form=Form(options.form),
                seed=seed,
                seconds=options.minutes * 60,
                stream=options.stream,
                fast_paths=options.fast_paths,
                on_server=options.engine == "postgresql",
                only=tuple(Kind(one) for one in options.only),
            ),
            _say,
        )
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    return await task


def _repeats(report: Report, options: argparse.Namespace) -> str:
    further = f" STREAM={options.stream}" if options.stream else ""
    further += "" if options.fast_paths else " FAST_PATHS=off"
    further += "" if options.engine == "files" else f" ENGINE={options.engine}"
    only = " ".join(f"--only '{one}'" for one in options.only)
    further += f' ARGS="{only}"' if only else ""
    return (
        f"seed {report.seed}: {len(report.problems)} found; files are kept in {report.folder}; "
        f"again: make chaos MINUTES={options.minutes:g} SEED={report.seed} "
        f"FORM={report.form}{further}"
    )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of sending and of faults")
    parser.add_argument("--runs", type=int, default=1, help="each with the next seed")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--form", choices=[str(one) for one in Form], default=str(Form.TWO))
    parser.add_argument("--stream", type=Path, help="what tests.chaos.history has made")
    parser.add_argument(
        "--no-fast-paths",
        dest="fast_paths",
        action="store_false",
        help="every message takes the general path",
    )
    parser.add_argument("--engine", choices=["files", "postgresql"], default="files")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[str(one) for one in Kind],
        help="only faults of this kind; repeatable",
    )
    parser.add_argument("--dir", type=Path, default=Path("build/chaos"), help="of all files")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    if options.stream is not None:
        try:
            Stream(options.stream)
        except (OSError, ValueError) as error:
            parser.error(f"no stream in {options.stream}: {error}")
    return options


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
