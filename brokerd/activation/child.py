"""Child: the program of a reader process, which runs one handler (ACT-20, design D15).

Started under a guard: `python -m brokerd.activation.child MODULE:FUNCTION QUEUE`.
Reads:  the address of the daemon, from its environment.      Calls: the SDK, as any program does.
Never:  decides when it ends: the handler decides, or the daemon, which kills the process group.
"""

import asyncio
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from brokerd.activation.handlers import Handler, HandlerError, import_from_here, load_handler
from brokerd.activation.processes import FAILED, UNUSABLE
from brokerd.app.session import Session
from brokerd.client.connecting import open_session
from brokerd.client.outcomes import Park, Retry
from brokerd.errors import BrokerError, HandlerLeftTransactionOpen

GO: Final = "BROKERD_GO"
"""Variable with the descriptor from which a spare reads its order to begin.

One byte = begin; end of file = do not begin."""
_TOO_MUCH: Final = (
    "MemoryError: it needs more memory than it may have; fix: take less at a time, or give "
    "activation.memory of its queue a higher value"
)
_WAIT: Final = 10.0
"""Seconds within which the first connection must succeed."""
_RETRY: Final = 1.0
"""Seconds for which a lost connection is retried: a reader must not outlive its daemon."""


def main(path: str, queue: str) -> int:
    """Run the handler once; return the exit status, and print an error as the last line."""
    import_from_here()
    try:
        handler = load_handler(path, queue)
    except HandlerError as error:
        _print_error(error.with_cure)
        return UNUSABLE
    try:
        return asyncio.run(_run(handler, path))
    except BrokerError as error:
        _print_error(f"{type(error).__name__}: {error.with_cure}")
    except MemoryError:
        traceback.print_exc()
        _print_error(_TOO_MUCH)
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # per reader (design, The code)
        traceback.print_exc()
        _print_error(f"{type(error).__name__}: {error}")
    return FAILED


async def _run(handler: Handler, path: str) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # the daemon ends its receives empty (PBT-25)
        loop.add_signal_handler(number, lambda: None)
    broker = os.environ["BROKERD_BROKER"]
    async with await open_session(Session, None, broker, wait=_WAIT, retry=_RETRY) as session:
        if GO in os.environ and not await _wait_for_go(path):
            return 0
        session.drain_wait = float(os.environ.get("BROKERD_DRAIN_WAIT", session.drain_wait))
        try:
            await handler(session)
        except (Retry, Park):
            return 0  # the SDK has rolled back as the handler requested
        if session.open_transactions:
            _print_error(HandlerLeftTransactionOpen().with_cure)
            return FAILED
    return 0


async def _wait_for_go(path: str) -> bool:
    """Wait, as a spare, until the daemon has work; return False if the spare is no longer needed.

    If the file of the module has changed meanwhile, restart the process to run the new code."""
    source = Path(sys.modules[path.partition(":")[0]].__file__ or "")
    known = _changed_at(source)
    begins = int(os.environ.pop(GO))
    loop = asyncio.get_running_loop()
    go_given = asyncio.Event()
    loop.add_reader(begins, go_given.set)
    await go_given.wait()
    loop.remove_reader(begins)
    go = os.read(begins, 1)
    os.close(begins)
    if go and _changed_at(source) != known:
        again = [sys.executable, "-m", "brokerd.activation.child", *sys.argv[1:]]
        os.execv(sys.executable, again)  # noqa: S606  # the command of this process
    return bool(go)


def _changed_at(source: Path) -> int:
    try:
        return source.stat().st_mtime_ns
    except OSError:
        return 0


def _print_error(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
