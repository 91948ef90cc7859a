"""Commands: what an administrator would run, and what it says.

Calls:  the installed command, as a process of its own.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import brokerd

WITHIN: Final = 300.0
_SHOWN: Final = 4


async def run(*words: str) -> tuple[int, str]:
    """Run `brokerd` with these words; its exit status and what it printed."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("BROKERD_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "brokerd",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=own | {"PYTHONPATH": str(Path(brokerd.__file__).parents[1])},
    )
    try:
        async with asyncio.timeout(WITHIN):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode(errors="replace").strip()


async def verify(store: object) -> str:
    """What `brokerd store verify` finds; "" if nothing."""
    status, said = await run("store", "verify", str(store))
    lines = said.splitlines()
    more = f"\n  and {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else ""
    return "\n  ".join(["", *lines[:_SHOWN]]) + more if status else ""


async def doctor(settings: Path) -> list[dict[str, Any]]:
    """The findings of `brokerd doctor`, with their codes."""
    status, said = await run("doctor", "-c", str(settings), "--json")
    try:
        return list(json.loads(said)["rows"])
    except (ValueError, KeyError):
        return [{"code": "none", "about": str(settings), "text": f"status {status}: {said[-500:]}"}]
