"""Every error of appendix A is provoked through the SDK and on the command line, and reads well."""

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import brokerd
from brokerd.cli.main import main
from brokerd.errors import FOUND_BY_BROKERS, BrokerError, RemoteError, ServiceNotFound
from brokerd.process.exit_statuses import ROWS as STATUSES
from tests.acceptance.appendix import OBJECTS, Place, Row
from tests.acceptance.appendix_rows import NOT_YET, ROWS
from tests.acceptance.one_process import Served

pytestmark = pytest.mark.of_files(
    "the file of another broker and a damaged one are beside the rest"
)
SPEC = Path(__file__).parents[2] / "docs" / "spec" / "programming-model.md"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One daemon for all; a copy of a broker and one that cannot be opened lie beside the rest."""
    served = Served(tmp_path_factory.mktemp("a"), OBJECTS)
    served.start()
    served.stop()
    shutil.copy(served.folder / "main.db", served.folder / "copy.db")
    copy = sqlite3.connect(served.folder / "copy.db", isolation_level=None)
    copy.execute("UPDATE store SET broker_name = 'copy'")
    copy.close()
    (served.folder / "broken.db").write_text("a shopping list\n" * 50)
    served.start()
    yield served
    served.stop()


@pytest.fixture
def place(served: Served) -> Iterator[Place]:
    place = Place(served)
    with place.until_done:
        yield place


def named(row: Row) -> str:
    return "-".join(str(one) for one in (row.name, row.number, row.status) if one is not None)


@pytest.mark.rule("ERR-B1", "ERR-B3", "SDK-17", "ERR-1")
@pytest.mark.rule(
    "ERR-8408", "ERR-8410", "ERR-8411", "ERR-8419", "ERR-8423", "ERR-8425", "ERR-8426"
)
@pytest.mark.rule(
    "ERR-8427", "ERR-8428", "ERR-8430", "ERR-8431", "ERR-8432", "ERR-8433", "ERR-8436"
)
@pytest.mark.rule(
    "ERR-8451", "ERR-8459", "ERR-8462", "ERR-8469", "ERR-8489", "ERR-8490", "ERR-9610"
)
@pytest.mark.rule("ERR-9616", "ERR-9613", "ERR-9617", "ERR-9717", "ERR-9719", "ERR-9772")
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_program_meets_it(row: Row, place: Place) -> None:
    async def provoke() -> None:
        async with place.session() as bk:
            await row.sdk(place, bk)

    with pytest.raises(BrokerError) as caught:
        asyncio.run(provoke())
    error = caught.value
    assert (error.code, error.ssb_code) == (row.code, row.number), error.message
    assert error.retryable is row.retryable
    assert error.hint, error.message
    assert re.search(row.names, error.message, re.DOTALL), error.message


def facts(error: BrokerError) -> tuple[object, ...]:
    return type(error), error.code, error.retryable, error.hint, error.ssb_code, error.message


@pytest.mark.rule("SDK-17", "SDK-13")
def test_it_is_the_same_in_a_file_and_without_await(place: Place, tmp_path: Path) -> None:
    where = f"file:{tmp_path}/main.db"
    met: list[tuple[object, ...]] = []

    async def awaited() -> None:
        async with place.session() as through_a_socket, brokerd.connect(where) as in_a_file:
            for bk in (through_a_socket, in_a_file):
                with pytest.raises(ServiceNotFound) as caught:
                    await bk.begin_dialog("nobody", "shop")
                met.append(facts(caught.value))

    asyncio.run(awaited())
    for address in (place.served.address, where):
        with brokerd.sync.connect(address, broker="main") as bk:
            with pytest.raises(ServiceNotFound) as caught:
                bk.begin_dialog("nobody", "shop")
            met.append(facts(caught.value))
    assert len(met) == 4
    assert len(set(met)) == 1


@pytest.mark.rule("ERR-B1")
@pytest.mark.parametrize("row", [row for row in ROWS if not isinstance(row.cli, str)], ids=named)
def test_a_person_meets_it(row: Row, place: Place, capsys: Capture) -> None:
    assert not isinstance(row.cli, str)
    command = row.cli(place)
    capsys.readouterr()
    status = main([*command, "--address", place.served.address])
    out, err = capsys.readouterr()
    told = out if row.status == 0 else err
    assert status == row.status, out + err
    assert re.search(row.names, told, re.DOTALL), told
    assert re.search("^  fix: .", told, re.MULTILINE), told
    assert "Traceback" not in out + err
    assert row.number is None or row.status != 0 or f"-{row.number}" in told


def test_the_statuses_are_those_documented() -> None:
    assert {row.status for row in ROWS} <= {row.status for row in STATUSES}


def appendix() -> list[tuple[str, str]]:
    """The numbers and the names of each line of the appendix."""
    text = SPEC.read_text().partition("## Appendix A")[2].partition("## Appendix B")[0]
    return re.findall(r"^\| ERR-\w+ \| ([^|]*) \| ([^|]*) \|", text, re.MULTILINE)


def in_snake_case(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


@pytest.mark.rule("ERR-B2", "ERR-8494", "ERR-8495", "SDK-6")
def test_an_error_on_a_dialog_has_the_code_of_the_appendix() -> None:
    """Whatever number a broker gives, the program at the other side gets the name for it."""
    codes: dict[str, set[str]] = {}
    for numbers, names in appendix():
        for number in re.findall(r"\d+", numbers):
            codes[number] = {in_snake_case(one) for one in re.findall(r"\w+", names)}
    for number in FOUND_BY_BROKERS:
        error = RemoteError(number, "")
        assert error.code in codes[str(-number)], number
        assert error.ssb_code == -number
        assert error.hint
    for number in re.findall(r"\u2212(\d+)", SPEC.read_text().partition("## Appendix A")[2]):
        assert -int(number) in FOUND_BY_BROKERS
    assert RemoteError(-1, "").code == "remote_error"


def test_the_table_has_every_error_of_the_appendix() -> None:
    listed = appendix()
    names = {name for _, cell in listed for name in re.findall(r"\b[A-Z][A-Za-z]+\b", cell)}
    numbers = {int(one) for cell, _ in listed for one in re.findall(r"\b\d{4,5}\b", cell)}
    assert names == {row.name for row in ROWS} | NOT_YET.keys()
    left = numbers - {row.number for row in ROWS}
    assert left == NUMBERS_WITHOUT_A_ROW.keys()


NUMBERS_WITHOUT_A_ROW = {
    9727: "NoBinding",
    9731: "NoCertificate",
    60001: "HistoryLost",
    60002: "DialogIdle",
    8415: "HandlerLeftTransactionOpen",
    8424: "the same as 8419: neither number nor text is the plain end",
    8437: "as 8457, from the target: see test_dialog_state",
    8439: "as 8436",
    8494: "AccessDenied",
    8495: "AlreadyAcknowledgedElsewhere",
    9614: "a principal is always the owner until there are others",
    9653: "what a handler takes is looked at when it is imported (brokerd config check)",
    9773: "what a second one is started with, not refused with: disabled_reason",
}
