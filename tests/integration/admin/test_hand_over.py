"""Stores in files are handed over to nobody (REL-58)."""

from pathlib import Path

import pytest

from brokerd.errors import InvalidArgument
from tests.integration.one_daemon import Daemon, play


@pytest.mark.rule("REL-58", "CLP-174")
def test_stores_in_files_cannot_be_handed_over(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            with pytest.raises(InvalidArgument, match="are in files"):
                await session.admin.hand_over()
            assert await session.status()

    play(program, tmp_path)
