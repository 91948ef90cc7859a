"""Files of an instance: whose they are, who may write to them, and that no link is followed."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from brokerd.clock import SystemClock
from brokerd.config.settings import Clients, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.errors import StoreLocked, UnsafeFile
from brokerd.ids import BrokerId, InstanceId, RandomIds
from brokerd.instance.preflight import check_start
from brokerd.maintenance.disk_space import SystemDisk
from brokerd.process.exit_statuses import exit_status
from brokerd.storage.files.lock import OwnerLock, last_owner, lock_path, refuse_if_held
from brokerd.storage.files.log_head import State, head_path
from brokerd.storage.files.private_files import (
    make_private_directory,
    open_private,
    owner_of,
    refuse_unsafe,
    survey,
    why_unreachable,
)
from brokerd.storage.loss_acceptance import accept_loss
from brokerd.storage.opening import NewStore, open_file
from brokerd.telemetry.status import FileProblem, InstanceStatus, concerns
from tests.integration.one_daemon import Daemon, play

STRANGER = 54_321
SHARED = "what somebody else wrote\n" * 100
MEBIBYTE = 1024 * 1024

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The directory of an instance that has run and stopped: `msdb`, its lock, and a reserve."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    make_store(directory, "msdb")
    assert SystemDisk(directory).reserve(4096)
    return directory


def make_store(directory: Path, name: str) -> None:
    new = NewStore(name, BrokerId(bytes(16)), InstanceId(bytes(16)))
    opened = open_file(
        directory / f"{name}.db",
        ids=RandomIds(),
        clock=SystemClock(),
        create=new,
        name=name,
        fault=lambda _point: None,
    )
    opened.connection.close()
    opened.lock.release()


def settings(directory: Path, listen: str = "") -> Settings:
    return Settings(instance=InstanceSettings(data_dir=directory), clients=Clients(listen=listen))


def found(directory: Path) -> list[FileProblem]:
    return list(survey([directory]))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def link(path: Path, other: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(other)


def hard_link(path: Path, other: Path) -> None:
    path.unlink(missing_ok=True)
    path.hardlink_to(other)


def pipe(path: Path, _other: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def opened_up(path: Path, _other: Path) -> None:
    path.touch()
    path.chmod(0o660)


def given_away(path: Path, _other: Path) -> None:
    path.touch(mode=0o600)
    os.chown(path, STRANGER, -1)


SPOILT: list[object] = [
    pytest.param(link, "is a symbolic link", id="link"),
    pytest.param(hard_link, "has 2 names (hard links)", id="hard-link"),
    pytest.param(pipe, "is no regular file", id="pipe"),
    pytest.param(opened_up, "has mode 0660: others may write to it", id="mode"),
    pytest.param(given_away, f"belongs to user {STRANGER}", id="owner", marks=as_root),
]
FILES = ["msdb.db", "msdb.db-wal", "msdb.db-shm", "msdb.db-head", "msdb.db.lock", "reserve"]


@pytest.mark.rule("CLP-130", "CLP-140")
def test_a_socket_is_out_of_reach_below_a_directory_that_is_closed(tmp_path: Path) -> None:
    top = tmp_path / "a"
    below = top / "b"
    below.mkdir(parents=True)
    tmp_path.chmod(0o755)
    top.chmod(0o700)
    below.chmod(0o755)
    place = below / "socket"
    closed = [one for one in reversed(place.parents) if not one.stat().st_mode & stat.S_IXOTH]
    assert f"because {closed[0]} is closed" in why_unreachable(place)
    assert top in closed
    assert why_unreachable(None) == ""
    assert why_unreachable(Path("/socket")) == ""


@pytest.mark.rule("SX-24", "FD-9")
@pytest.mark.parametrize("spoil", [link, hard_link])
def test_a_store_is_not_to_be_replaced_under_a_daemon(
    spoil: Callable[[Path, Path], None], data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").touch(mode=0o600)
    spoil(data_dir / "msdb.db", tmp_path / "other")
    (one,) = [one for one in found(data_dir) if one.path == str(data_dir / "msdb.db")]
    assert one.mend.startswith("stop the daemon, then ")


@pytest.mark.rule("SX-24")
def test_nothing_is_wrong_with_what_the_daemon_itself_makes(data_dir: Path) -> None:
    assert found(data_dir) == []
    check_start(settings(data_dir), None)


@pytest.mark.rule("SX-24")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_a_start_is_refused_where_a_file_is_not_its_alone(
    spoil: Callable[[Path, Path], None], problem: str, name: str, data_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text(SHARED)
    path = data_dir / name
    spoil(path, other)
    with pytest.raises(UnsafeFile) as refused:
        check_start(settings(data_dir), None)
    assert exit_status(refused.value) == 78
    assert f"{path} {problem}" in refused.value.message
    (one,) = found(data_dir)
    assert (one.path, one.is_refused) == (str(path), True)
    assert one.mend.endswith(str(path))
    assert other.read_text() == SHARED


@pytest.mark.rule("SX-24")
@pytest.mark.parametrize(
    "name", ["msdb.db", "msdb.db-wal", "msdb.db-shm", "msdb.db-head", "msdb.db.lock"]
)
@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_a_store_is_not_opened_where_one_of_its_files_is_not_its_alone(
    spoil: Callable[[Path, Path], None], problem: str, name: str, data_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text(SHARED)
    spoil(data_dir / name, other)
    with pytest.raises(UnsafeFile, match=name) as refused:
        open_file(
            data_dir / "msdb.db",
            ids=RandomIds(),
            clock=SystemClock(),
            create=None,
            name="msdb",
            fault=lambda _point: None,
        )
    assert problem in refused.value.message
    assert str(data_dir / name) in refused.value.hint
    assert other.read_text() == SHARED


@pytest.mark.rule("SX-24", "CLK-6")
def test_the_store_of_another_broker_keeps_out_that_one_alone(data_dir: Path) -> None:
    for name in ("east", "west"):
        make_store(data_dir, name)
    (data_dir / "east.db").chmod(0o666)
    check_start(settings(data_dir), None)
    (data_dir / "west.db.lock").chmod(0o666)
    with pytest.raises(UnsafeFile, match=r"east\.db has mode 0666"):
        check_start(settings(data_dir), None)  # no broker would serve


@pytest.mark.rule("SX-24")
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to(mode: int, data_dir: Path) -> None:
    data_dir.chmod(mode)
    with pytest.raises(UnsafeFile) as refused:
        check_start(settings(data_dir), None)
    text = f"{data_dir} has mode {mode:04o}: others may write to it; chmod go-w {data_dir}"
    assert text in refused.value.message
    data_dir.chmod(0o755)
    check_start(settings(data_dir), None)


@pytest.mark.rule("SX-24", "FO-9")
@as_root
def test_a_directory_of_somebody_else(data_dir: Path) -> None:
    os.chown(data_dir, STRANGER, -1)
    with pytest.raises(UnsafeFile, match=f"{data_dir} belongs to user {STRANGER}, not to 0"):
        check_start(settings(data_dir), None)
    assert list(survey([data_dir], user=STRANGER)) == []  # what is root's is trusted


@pytest.mark.rule("SX-24")
@as_root
def test_root_looks_at_the_files_of_another_user_as_that_user_would(data_dir: Path) -> None:
    for path in (data_dir, *data_dir.iterdir()):
        os.chown(path, STRANGER, -1)
    check_start(settings(data_dir), None, user=owner_of(data_dir))
    with pytest.raises(UnsafeFile):
        check_start(settings(data_dir), None)  # the daemon itself would be root
    os.chown(data_dir / "msdb.db", STRANGER + 1, -1)
    with pytest.raises(UnsafeFile, match=rf"belongs to user {STRANGER + 1}, not to {STRANGER}"):
        check_start(settings(data_dir), None, user=owner_of(data_dir))
    assert owner_of(data_dir / "none") is None


@pytest.mark.rule("SX-24", "REL-39")
@as_root
@pytest.mark.parametrize("lock", ["there", "missing"])
def test_root_is_sent_to_the_user_of_a_store_and_leaves_no_file_of_its_own(
    data_dir: Path, lock: str
) -> None:
    """Whoever gave root one of the files, or let it make one, would keep the daemon out."""
    store = data_dir / "msdb.db"
    lock_path(store).unlink()
    if lock == "there":
        lock_path(store).touch(mode=0o600)
    # As a kill leaves it, with its log gone: a loss that could be accepted.
    record = bytearray(head_path(store).read_bytes())
    record[:8] = State.OPEN.value
    head_path(store).write_bytes(record)
    for path in (data_dir, *data_dir.iterdir()):
        os.chown(path, STRANGER, -1)
    before = sorted(data_dir.iterdir())
    cure = f"sudo -u '#{STRANGER}'"
    steps: list[Callable[[], object]] = [
        lambda: accept_loss(store, ids=RandomIds(), clock=SystemClock()),
        lambda: refuse_unsafe(store),
        lambda: check_start(settings(data_dir), None),
    ]
    if lock == "there":
        steps.append(lambda: OwnerLock(store, clock=SystemClock()))
    for step in steps:
        with pytest.raises(UnsafeFile) as refused:
            step()
        told = f"{refused.value.message} {refused.value.hint}"
        assert cure in told
        assert "chown" not in told
    assert sorted(data_dir.iterdir()) == before
    assert {path.stat().st_uid for path in before} == {STRANGER}


@pytest.mark.rule("SX-24")
def test_the_directory_itself_may_be_a_link(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data_dir)
    check_start(settings(tmp_path / "link"), None)
    data_dir.chmod(0o777)
    with pytest.raises(UnsafeFile, match="link has mode 0777"):
        check_start(settings(tmp_path / "link"), None)


@pytest.mark.rule("SX-24")
def test_the_directory_of_the_socket(data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    listen = f"unix:{folder}/s"
    for mode, is_refused in ((0o755, False), (0o775, True), (0o777, True), (0o1777, False)):
        folder.chmod(mode)
        problems = list(survey([data_dir], socket=folder / "s"))
        assert [one.path for one in problems] == [str(folder)] * is_refused
    folder.chmod(0o775)
    with pytest.raises(UnsafeFile, match="run has mode 0775"):
        check_start(settings(data_dir, listen), None)


@pytest.mark.rule("SX-24", "SX-6")
@pytest.mark.parametrize("name", ["peer.key", "ours.pem"])
def test_nobody_else_may_read_a_key(name: str, data_dir: Path) -> None:
    key = data_dir / name
    key.write_text("secret")
    key.chmod(0o600)
    check_start(settings(data_dir), None)
    key.chmod(0o640)  # the directory lets nobody in today
    with pytest.raises(UnsafeFile, match=f"{name} has mode 0640: others may read it"):
        check_start(settings(data_dir), None)


@pytest.mark.rule("SX-24")
def test_what_others_may_read_is_reported_and_no_reason_to_refuse(data_dir: Path) -> None:
    store = data_dir / "msdb.db"
    for mode, around, is_told in (
        (0o644, 0o700, False),
        (0o604, 0o755, True),
        (0o640, 0o750, True),
        (0o640, 0o705, False),
        (0o604, 0o750, False),
    ):
        store.chmod(mode)
        data_dir.chmod(around)
        check_start(settings(data_dir), None)
        problems = found(data_dir)
        assert [one.path for one in problems] == [str(store)] * is_told
        for one in problems:
            assert one.problem == f"has mode {mode:04o}: others may read it"
            assert (one.mend, one.is_refused) == (f"chmod go= {store}", False)


@pytest.mark.rule("SX-24")
def test_what_is_not_there_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert list(survey([tmp_path / "none"], socket=tmp_path / "none" / "s")) == []
    assert list(survey([tmp_path / "file"])) == []


@pytest.mark.of_files("it opens store files to others")
@pytest.mark.rule("SX-24")
def test_a_running_daemon_shows_what_its_files_have_become(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        store = tmp_path / "main.db"
        async with await daemon.session() as session:
            assert (await session.status())["file_problems"] == []
            store.chmod(0o664)
            status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
        (one,) = status.file_problems
        assert (one.path, one.is_refused) == (str(store), True)
        assert f"{store} has mode 0664: others may write to it" in concerns(status)

    play(program, tmp_path)


# What is opened before it is written to.


def lock_it(path: Path) -> None:
    OwnerLock(path, clock=SystemClock()).release()


@pytest.mark.rule("SX-24", "REL-16")
@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_a_lock_is_neither_taken_nor_read_through_a_link(
    spoil: Callable[[Path, Path], None], problem: str, tmp_path: Path
) -> None:
    store, other = tmp_path / "x.db", tmp_path / "other"
    other.write_text(SHARED)
    spoil(lock_path(store), other)
    with pytest.raises(UnsafeFile) as refused:
        lock_it(store)
    assert f"{lock_path(store)} {problem}" in refused.value.message
    if spoil in (link, pipe):  # else it may be read, if only to see whether it is held
        with pytest.raises(UnsafeFile) as refused:
            refuse_if_held(store)
        assert f"{lock_path(store)} {problem}" in refused.value.message
    else:
        refuse_if_held(store)
    assert last_owner(store) is None
    assert other.read_text() == SHARED


@pytest.mark.rule("SX-24", "REL-16")
def test_a_lock_that_leads_nowhere_makes_no_file(tmp_path: Path) -> None:
    store, other = tmp_path / "x.db", tmp_path / "other"
    lock_path(store).symlink_to(other)
    with pytest.raises(UnsafeFile, match="is a symbolic link"):
        lock_it(store)
    assert not other.exists()


@pytest.mark.rule("SX-24", "REL-26")
@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_the_reserve_never_grows_another_file(
    spoil: Callable[[Path, Path], None], problem: str, tmp_path: Path
) -> None:
    other, disk = tmp_path / "other", SystemDisk(tmp_path)
    other.write_text(SHARED)
    spoil(tmp_path / "reserve", other)
    assert not disk.reserve(MEBIBYTE), problem
    assert other.read_text() == SHARED
    assert disk.reserve(MEBIBYTE)
    assert stat.S_ISREG((tmp_path / "reserve").lstat().st_mode)
    assert (tmp_path / "reserve").stat().st_size == MEBIBYTE
    assert other.read_text() == SHARED


@pytest.mark.rule("SX-24", "REL-16")
def test_a_lock_still_keeps_others_out(tmp_path: Path) -> None:
    store = tmp_path / "x.db"
    lock = OwnerLock(store, clock=SystemClock())
    try:
        for use in (lock_it, refuse_if_held):
            with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
                use(store)
        owner = last_owner(store)
        assert owner is not None
        assert owner.pid == os.getpid()
    finally:
        lock.release()
    refuse_if_held(store)


@pytest.mark.rule("SX-24", "SX-1")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_what_is_made_is_private_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b" / "data"
    with umask(mask if mask != 0o777 or os.geteuid() == 0 else 0o077):
        make_private_directory(directory)
        make_store(directory, "main")
        assert SystemDisk(directory).reserve(4096)
    made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert made == dict.fromkeys(["main.db", "main.db-head", "main.db.lock", "reserve"], 0o600)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for parent in (directory.parent, directory.parent.parent):
        assert not stat.S_IMODE(parent.stat().st_mode) & 0o022
    make_private_directory(directory)  # is there already
    with pytest.raises(FileExistsError):
        make_private_directory(directory / "main.db")


@pytest.mark.rule("SX-24")
def test_what_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_private(tmp_path / "none", writable=False)
