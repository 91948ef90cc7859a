"""What the scan of a log says is held against what SQLite makes of the same bytes (REL-6)."""

import sqlite3
import struct
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.storage.compiled import library
from brokerd.storage.files.log_scan import FRAME_HEADER_SIZE, HEADER_SIZE, Scan, checksum, scan

PAGE = 1024
FRAME = FRAME_HEADER_SIZE + PAGE

pytestmark = pytest.mark.of_files("a log is a file beside that of the store")


class Made:
    """A store's file and its log, as a kill leaves them."""

    def __init__(self, file: bytes, log: bytes) -> None:
        self.file, self.log = file, log

    @property
    def frames(self) -> int:
        return (len(self.log) - HEADER_SIZE) // FRAME


def make(commits: list[int], *, begun_anew_after: int | None = None) -> Made:
    """Commits of about so many pages each."""
    with TemporaryDirectory(dir=shm()) as place:
        path = Path(place, "a.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("CREATE TABLE t (body BLOB)")
            for at, pages in enumerate(commits):
                connection.execute("INSERT INTO t VALUES (randomblob(?))", (pages * PAGE,))
                if at == begun_anew_after:
                    connection.execute("PRAGMA wal_checkpoint(RESTART)")
            return Made(path.read_bytes(), Path(f"{path}-wal").read_bytes())


def shm() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def recovered_by_sqlite(file: bytes, log: bytes) -> int:
    """The last frame of the log that SQLite uses."""
    with TemporaryDirectory(dir=shm()) as place:
        path = Path(place, "a.db")
        path.write_bytes(file)
        Path(f"{path}-wal").write_bytes(log)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return max(0, int(frames))


def scanned(log: bytes, probe: int = 0) -> Scan:
    return scan(BytesIO(log), page_size=PAGE, probe=probe)


@pytest.fixture(params=["compiled", "python"])
def _either_checksum(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(library, "BUILT", None)
    elif not library.IS_BUILT:
        pytest.skip("the compiled part is not built: it needs a C compiler at set-up")


@pytest.fixture(scope="module")
def made() -> Made:
    """Five commits, behind them what is left of an older generation."""
    return make([9, 9, 9, 0, 3, 1, 0, 2], begun_anew_after=2)


def commits_of(log: bytes) -> list[int]:
    """The frames of the first generation that end a transaction."""
    salts = log[16:24]
    found = []
    for at in range((len(log) - HEADER_SIZE) // FRAME):
        header = log[HEADER_SIZE + at * FRAME :][:FRAME_HEADER_SIZE]
        if header[8:16] == salts and header[4:8] != bytes(4):
            found.append(at + 1)
    return found


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.usefixtures("_either_checksum")
def test_a_whole_log_is_recovered_to_its_last_commit(made):
    found = scanned(made.log)
    assert found.committed == recovered_by_sqlite(made.file, made.log) == commits_of(made.log)[-1]
    assert found.commits == len(commits_of(made.log))
    assert found.bad == found.committed + 1, "an older generation lies behind it"
    assert (found.behind, found.is_damaged) == (0, False)


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.usefixtures("_either_checksum")
def test_a_log_with_the_other_byte_order_is_read_too(made):
    first, rest = bytearray(made.log[:HEADER_SIZE]), made.log[HEADER_SIZE:]
    struct.pack_into(">I", first, 0, 0x377F0683)
    running = checksum(bytes(first[:24]), (0, 0), "big")
    struct.pack_into(">2I", first, 24, *running)
    log = bytes(first)
    for at in range(commits_of(made.log)[-1]):
        frame = bytearray(rest[at * FRAME :][:FRAME])
        running = checksum(bytes(frame[:8] + frame[FRAME_HEADER_SIZE:]), running, "big")
        struct.pack_into(">2I", frame, 16, *running)
        log += frame
    assert scanned(log).committed == recovered_by_sqlite(made.file, log) == log_end(log)


def log_end(log: bytes) -> int:
    return (len(log) - HEADER_SIZE) // FRAME


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.parametrize("what", ["page", "salt", "checksum", "data", "zeroes"])
def test_damage_before_a_later_commit_is_told_from_a_torn_end(made, what):
    """Every frame in turn: one that others were written behind was synced."""
    commits = commits_of(made.log)
    for frame in range(1, commits[-1] + 1):
        log = bytearray(made.log)
        at = HEADER_SIZE + (frame - 1) * FRAME
        place = {"page": 0, "salt": 8, "checksum": 16, "data": 200, "zeroes": 0}[what]
        if what == "zeroes":
            log[at : at + FRAME] = bytes(FRAME)
        else:
            log[at + place] ^= 0x10
        found = scanned(bytes(log))
        assert found.bad == frame
        assert found.committed == max([0, *(one for one in commits if one < frame)])
        behind = [one for one in commits if one > frame]
        if frame in commits and len(behind) == 1 and behind[0] == commits[-1]:
            # The commit itself may be what is damaged: only the record can tell (REL-6).
            continue
        assert found.is_damaged is (len(behind) > 1), frame
        if what != "zeroes":
            assert found.commits_behind >= len(behind)


@pytest.mark.rule("REL-39", "REL-6")
@pytest.mark.parametrize("at", range(0, HEADER_SIZE, 3))
def test_a_header_that_is_damaged_before_frames_is_damage(made, at):
    log = bytearray(made.log)
    log[at] ^= 1
    assert recovered_by_sqlite(made.file, bytes(log)) == 0
    found = scanned(bytes(log))
    assert (found.committed, found.salts, found.is_damaged) == (0, None, True)


@pytest.mark.rule("REL-39", "REL-6")
def test_a_log_that_was_only_begun_is_no_damage(made):
    for log in (b"", made.log[:20], bytes(HEADER_SIZE), bytes(2 * FRAME), made.log[:HEADER_SIZE]):
        found = scanned(log)
        assert (found.committed, found.is_damaged) == (0, False)


@pytest.mark.rule("REL-39", "REL-6")
def test_the_checksum_of_a_frame_is_told_only_where_it_is_recovered(made):
    last = commits_of(made.log)[-1]
    at = HEADER_SIZE + (last - 1) * FRAME + 16
    assert scanned(made.log, last).probed == struct.unpack_from(">2I", made.log, at)
    assert scanned(made.log, last + 1).probed is None
    assert scanned(made.log[:-1], 0).probed is None


changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "cut", "copy", "swap"]),
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1, exclude_max=True),
    ),
    max_size=3,
)


def changed(log: bytes, what: list[tuple[str, float, float]]) -> bytes:
    """Flip a bit, write zeros over a frame, cut it off, copy a frame over another, swap two."""
    data = bytearray(log)
    for kind, where, more in what:
        frames = (len(data) - HEADER_SIZE) // FRAME
        if frames < 1:
            break
        one, other = (HEADER_SIZE + int(frames * share) * FRAME for share in (where, more))
        if kind == "flip":
            data[int(len(data) * where)] ^= 1 << int(8 * more)
        elif kind == "zero":
            data[one : one + FRAME] = bytes(FRAME)
        elif kind == "cut":
            del data[int(len(data) * where) :]
        elif kind == "copy":
            data[one : one + FRAME] = data[other : other + FRAME]
        else:
            first, second = bytes(data[one : one + FRAME]), bytes(data[other : other + FRAME])
            data[one : one + FRAME], data[other : other + FRAME] = second, first
    return bytes(data)


@pytest.mark.rule("REL-39", "REL-6")
@settings(max_examples=60, deadline=None)
@given(
    commits=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    begun_anew_after=st.none() | st.integers(0, 4),
    what=changes,
)
def test_what_is_recovered_is_what_sqlite_recovers(commits, begun_anew_after, what):
    made = make(commits, begun_anew_after=begun_anew_after)
    log = changed(made.log, what)
    assert scanned(log).committed == recovered_by_sqlite(made.file, log)
