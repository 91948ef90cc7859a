"""What users install: wheels that are whole together, and work in an environment that is empty."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import brokerd
from brokerd.instance.assembly import VERSION
from tests.acceptance.serving import READY_WITHIN, Place
from tools.lock import ROOT, lock_path
from tools.release import contents
from tools.release.build import PLATFORM_VARIABLE, build, client_settings
from tools.release.client_part import CLIENT, imports, modules_of_client
from tools.release.first_reply import converse
from tools.release.toolchains import Platform
from tools.release.wheel_files import Wheel

HERE = f"linux_{os.uname().machine}"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with the wheel that the compiler of this machine makes."""
    folder = tmp_path_factory.mktemp("release")
    build(folder / "dist", [Platform(HERE, "cc")], work=folder / "work")
    return folder / "dist"


@pytest.fixture(scope="module")
def wheels(made: Path) -> list[Wheel]:
    return [Wheel.read(path) for path in sorted(made.glob("*.whl"))]


@pytest.fixture(scope="module")
def client(wheels: list[Wheel]) -> Wheel:
    (found,) = (one for one in wheels if one.name == CLIENT)
    return found


@pytest.mark.rule("MAN-19")
def test_a_release_has_sources_a_client_and_a_wheel_for_each_platform(
    made: Path, wheels: list[Wheel]
) -> None:
    version = wheels[0].version
    assert version == VERSION  # what the daemon says of itself
    assert sorted(path.name for path in made.iterdir()) == [
        f"brokerd-{version}-cp311-abi3-{HERE}.whl",
        f"brokerd-{version}-py3-none-any.whl",
        f"brokerd-{version}.tar.gz",
        f"brokerd_client-{version}-py3-none-any.whl",
    ]


@pytest.mark.rule("MAN-19")
def test_what_a_release_must_not_have_is_noticed(wheels: list[Wheel], client: Wheel) -> None:
    (compiled,) = (one for one in wheels if not one.is_pure)
    assert list(contents.faults_of_wheel(compiled)) == []
    name = next(path for path in compiled.files if path.endswith(".so"))
    compiled.files[name] += b"\0/home/somebody/brokerd/module.c\0"
    compiled.files["brokerd/__pycache__/x.pyc"] = b""
    compiled.files["tests/test_x.py"] = b""
    compiled.info["METADATA"] = compiled.info["METADATA"].replace(b"Summary:", b"Said:")
    said = "\n".join(contents.faults_of_wheel(compiled))
    for word in ("/home/somebody", "x.pyc is not for users", "installs tests", "no Summary"):
        assert word in said
    assert list(contents.faults_of_pair(client, client))


@pytest.mark.rule("MAN-19")
def test_a_compiled_wheel_is_not_made_without_its_compiled_part(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environ = os.environ | {PLATFORM_VARIABLE: "manylinux_2_17_x86_64", "CC": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "no compiled part for manylinux_2_17_x86_64" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.rule("MAN-19")
def test_the_record_of_a_wheel_has_every_file(made: Path) -> None:
    for path in made.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
            listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
        assert listed == names


@pytest.mark.rule("MAN-20")
def test_the_client_and_the_rest_have_no_file_in_common_and_all_together(
    made: Path, wheels: list[Wheel], client: Wheel
) -> None:
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        sources = {one.name.partition("/")[2] for one in archive.getmembers()}
    modules = {name for name in sources if name.startswith("brokerd/") and name.endswith(".py")}
    for rest in (one for one in wheels if one is not client):
        assert not client.files.keys() & rest.files.keys()
        assert modules <= client.files.keys() | rest.files.keys()
        assert f"{CLIENT}=={rest.version}" in rest.values("Requires-Dist")


@pytest.mark.rule("MAN-21")
def test_the_client_imports_nothing_that_it_does_not_require(client: Wheel) -> None:
    settings = client_settings()
    own = {"brokerd", *settings["dependencies"], *sys.stdlib_module_names}
    optional = {"opentelemetry"}
    foreign = {
        (path, one)
        for path, source in client.files.items()
        if path.endswith(".py")
        for one in imports(source)
        if one.split(".")[0] not in own | optional
    }
    assert not foreign
    posix = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "uvloop"}
    assert not [
        (path, one)
        for path, source in client.files.items()
        if path.endswith(".py")
        for one in imports(source)
        if one in posix
    ]


def test_the_files_of_the_client_follow_from_imports() -> None:
    files = {
        "brokerd/__init__.py": b"from brokerd import a\nfrom brokerd.deep.b import c",
        "brokerd/a.py": b"def f():\n    import brokerd.late\n    from brokerd.engine import x",
        "brokerd/late.py": b"if TYPE_CHECKING:\n import brokerd.z",
        "brokerd/deep/__init__.py": b"",
        "brokerd/deep/b.py": b"",
        "brokerd/engine/__init__.py": b"import brokerd.z",
        "brokerd/z.py": b"",
    }
    assert modules_of_client(files, ["brokerd.engine"]) == [
        *("brokerd/__init__.py", "brokerd/a.py", "brokerd/deep/__init__.py"),
        *("brokerd/deep/b.py", "brokerd/late.py"),
    ]


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"no {{name}} on this system", name=name)

sys.meta_path.insert(0, Blocked())
import os
import brokerd, brokerd.client.address
os.name = "nt"
try:
    brokerd.client.address.connector_for("unix:/x")
except brokerd.errors.InvalidArgument as error:
    print(error.hint)
"""


@pytest.mark.rule("MAN-21")
def test_a_program_imports_brokerd_where_there_is_no_posix(tmp_path: Path) -> None:
    """As on Windows: modules of POSIX, uvloop and what the daemon needs cannot be imported."""
    posix = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "uvloop"}
    daemon = {"sqlalchemy", "alembic", "aiosqlite", "aiohttp", "prometheus_client", "cryptography"}
    code = BLOCKED.format(blocked=posix | daemon | {"click", "orjson", "rich", "xxhash"})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TCP://host:port" in done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An environment with nothing in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "e")], check=True)
    return tmp_path / "e" / "bin" / "python"


def install(python: Path, *words: str) -> None:
    assert UV, "uv is among the locked tools"
    command = [UV, "pip", "install", "--quiet", "--python", str(python), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def pinned(*names: str) -> str:
    """The part of the lock for some packages, with their hashes."""
    blocks = lock_path("run").read_text().replace("\\\n", " ").splitlines()
    return "\n".join(line for line in blocks if line.split("==")[0] in names)


@pytest.mark.slow
@pytest.mark.rule("MAN-19", "MAN-20")
def test_the_installed_wheels_give_a_first_reply(made: Path, empty: Path, tmp_path: Path) -> None:
    """Only with what the lock has, and without anything of this tree."""
    install(empty, "--no-deps", "--require-hashes", "-r", str(lock_path("run")))
    install(empty, "--no-deps", *map(str, made.glob(f"*{HERE}.whl")), str(*made.glob("*client*")))
    place = tmp_path / "place"
    place.mkdir()
    converse(empty, place)
    said = _said(empty, "from brokerd.storage.compiled.library import IS_BUILT; print(IS_BUILT)")
    assert said == "True"


ASK = """
import brokerd, json, sys
with brokerd.sync.connect(sys.argv[1], wait=10) as session, session.transaction() as tx:
    handle = tx.begin_dialog("shop", "warehouse", "orders")
    tx.send(handle, b"{}", "Order")
try:
    with brokerd.sync.connect("file:x.db"):
        pass
except brokerd.BrokerError as error:
    print(json.dumps([error.hint, sorted(name for name in sys.modules if "sql" in name)]))
"""


@pytest.mark.slow
@pytest.mark.rule("MAN-21")
def test_the_client_alone_talks_to_a_daemon(made: Path, empty: Path, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text(pinned(*client_settings()["dependencies"]))
    install(empty, "--no-deps", "--require-hashes", "-r", str(tmp_path / "lock.txt"))
    install(empty, "--no-deps", str(*made.glob("*client*")))
    place = Place(tmp_path / "place")
    with place.serving():
        done = subprocess.run(
            [str(empty), "-c", ASK, place.address],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_WITHIN,
        )
        assert done.returncode == 0, done.stderr
        with brokerd.sync.connect(place.address, broker="main") as session:
            (message,) = session.browse("warehouse_q")
    assert message.body == b"{}"
    hint, loaded = json.loads(done.stdout)
    assert "pip install brokerd" in hint
    assert loaded == []


def _said(python: Path, code: str) -> str:
    command = [str(python), "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
