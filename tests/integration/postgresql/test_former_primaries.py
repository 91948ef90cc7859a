"""Two servers take changes: a daemon claims its instance at the newer one, and notes which."""

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from brokerd.clock import SystemClock
from brokerd.errors import StoreFault
from brokerd.storage.postgresql.acceptance import accept_server, find_difference
from brokerd.storage.postgresql.claim import Claim, Claiming
from brokerd.storage.postgresql.executor import OnServer
from brokerd.storage.postgresql.last_history import read_history
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.postgresql.survey import survey
from brokerd.storage.server_facts import ServerFacts
from tests.postgresql.servers import Server, Servers, url_of_all

DATABASE = "shop"


class Daemon:
    """A daemon that wants the stores, as far as its claim, with a data directory of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file = folder / "server-history"
        self.reasons: list[str] = []
        self.waits = asyncio.Event()
        self.passed_over: list[str] = []
        self.noted: list[tuple[str, str | None]] = []
        self._claiming = Claiming(
            url,
            ServerOptions(history_file=self.file),
            clock=SystemClock(),
            takeover_after=8,
            waiting=self._waiting,
            took_over=lambda _host, _seconds: None,
            passed_over=self.passed_over.append,
            noted=lambda now, before: self.noted.append((now.timeline, before and before.timeline)),
        )

    async def claim(self, *, waits: bool = False) -> Claim:
        return await self._claiming.run(waits=waits)

    @property
    def timeline(self) -> str | None:
        """The timeline that its file notes."""
        history = read_history(self.file)
        return history and history.timeline

    def _waiting(self, reason: str) -> None:
        self.reasons.append(reason)
        self.waits.set()


class Split(NamedTuple):
    """Two servers that take changes, of which the first was the primary of the other."""

    former: Server
    promoted: Server

    @property
    def url(self) -> str:
        return url_of_all([self.former, self.promoted], DATABASE)


@pytest.fixture
def split(postgresql_servers: Servers) -> Split:
    pytest.importorskip("asyncpg")
    former = postgresql_servers.started("former")
    former.create_database(DATABASE)
    promoted = postgresql_servers.standby_of(former, synchronous=False)
    promoted.promote()
    return Split(former, promoted)


@pytest.mark.rule("REL-59")
async def test_of_two_servers_that_take_changes_the_newer_one_counts(
    tmp_path: Path, split: Split
) -> None:
    daemon = Daemon(tmp_path, split.url)
    claim = await daemon.claim()
    assert await claim.waiting() == []
    await claim.release()
    assert daemon.noted == [("00000002", None)]
    (passed,) = daemon.passed_over
    assert str(split.former.folder) in passed
    assert "its timeline is 1, and this daemon was in 2" in passed


@pytest.mark.rule("REL-59")
async def test_a_daemon_goes_on_with_a_promoted_server_and_not_back(
    tmp_path: Path, split: Split
) -> None:
    split.promoted.pause()  # as if its machine could not be reached
    daemon = Daemon(tmp_path, split.url)
    await (await daemon.claim()).release()
    assert daemon.timeline == "00000001"
    split.promoted.resume()
    await (await daemon.claim()).release()
    assert daemon.noted == [("00000001", None), ("00000002", "00000001")]
    split.promoted.stop()
    with pytest.raises(StoreFault, match="it was the primary before") as refusal:
        await daemon.claim()
    assert "start the server that was promoted" in str(refusal.value.hint)
    assert daemon.timeline == "00000002"


@pytest.mark.rule("REL-59", "REL-54")
async def test_a_daemon_that_waits_notes_the_history_before_it_has_the_claim(
    tmp_path: Path, split: Split
) -> None:
    claim = await Daemon(tmp_path / "a", split.url).claim()
    second = Daemon(tmp_path / "b", split.url)
    waiting = asyncio.ensure_future(second.claim(waits=True))
    await second.waits.wait()
    assert "held by a daemon" in second.reasons[0]
    assert second.timeline == "00000002"
    await claim.release()
    await (await waiting).release()


@pytest.mark.rule("REL-59")
async def test_a_history_that_cannot_be_noted_refuses_the_claim(
    tmp_path: Path, split: Split
) -> None:
    in_the_way = tmp_path / "server-history.new"
    in_the_way.mkdir()
    daemon = Daemon(tmp_path, split.url)
    with pytest.raises(StoreFault, match="cannot be noted"):
        await daemon.claim()
    in_the_way.rmdir()
    await (await daemon.claim()).release()


@pytest.mark.rule("REL-60")
async def test_a_server_of_another_system_is_passed_over_and_may_be_accepted(
    tmp_path: Path, split: Split, postgresql_servers: Servers
) -> None:
    other = postgresql_servers.started("other", initdb=True)
    other.create_database(DATABASE)
    first = Daemon(tmp_path, split.url)
    await (await first.claim()).release()
    both = Daemon(tmp_path, url_of_all([other, split.promoted], DATABASE))
    await (await both.claim()).release()
    assert both.noted == []
    (passed,) = both.passed_over
    assert str(other.folder) in passed
    assert "another database system" in passed

    alone = Daemon(tmp_path, other.url(DATABASE))
    with pytest.raises(StoreFault, match="another database system") as refusal:
        await alone.claim()
    assert "brokerd store accept-server" in str(refusal.value.hint)
    options = ServerOptions(history_file=alone.file)
    with pytest.raises(StoreFault, match="another database system"):
        await asyncio.to_thread(survey, other.url(DATABASE), options)
    found = await asyncio.to_thread(find_difference, other.url(DATABASE), options)
    assert (found.is_refused, found.brokers) == (True, ())
    accepted = await asyncio.to_thread(accept_server, other.url(DATABASE), options)
    assert accepted.noted == found.noted
    await (await alone.claim()).release()
    assert not (await asyncio.to_thread(find_difference, other.url(DATABASE), options)).is_refused


@pytest.mark.rule("REL-87")
async def test_the_other_server_that_takes_changes_is_found(tmp_path: Path, split: Split) -> None:
    file = tmp_path / "server-history"
    executor = OnServer(split.url, ServerOptions(history_file=file, shown="shop"))

    async def facts() -> ServerFacts:
        found = await executor.server_facts([])
        assert found is not None
        return found

    await (await Daemon(tmp_path, split.url).claim()).release()
    at_promoted = await facts()
    assert at_promoted.newer == ()
    (former,) = at_promoted.former
    assert former.startswith(str(split.former.folder))
    assert "it was the primary before" in former

    await (await Daemon(tmp_path / "other", split.former.url(DATABASE)).claim()).release()
    file.write_bytes((tmp_path / "other" / "server-history").read_bytes())
    at_former = await facts()
    assert at_former.former == ()
    (newer,) = at_former.newer
    assert newer.startswith(f"{split.promoted.folder} port 5432 is timeline 2 of system")
