"""The engine does what the reference model says, whatever several clients do (MODEL tier)."""

import ast
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from brokerd.broker.window import WindowOptions
from tests.model import engine
from tests.model.objects import CATALOG, declaration
from tests.model.soak import play

BATCHES = range(6)
MACHINES = 50
"""Of each batch: 300 in all, always the same ones."""
FIRST = 2026
REFERENCE = Path(__file__).parent / "reference"


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.rule(
    "DLG-1", "DLG-4", "DLG-7", "DLG-8", "DLG-9", "DLG-10", "DLG-11", "DLG-14", "DLG-16",
    "DLG-18", "DLG-19", "DLG-20", "DLG-22", "DLG-25", "DLG-35", "DLG-36", "DLG-37",
    "DLG-38", "DLG-39", "DLG-40", "DLG-42", "DLG-43", "DLG-44", "DLG-46",
    "DLG-T1", "DLG-T2", "DLG-T3", "DLG-T5", "DLG-T6", "DLG-T8", "DLG-T9", "DLG-T10", "DLG-T11",
    "DLG-T12", "DLG-T13", "DLG-T14", "DLG-T16", "DLG-T17", "DLG-T23",
    "DLG-M1", "DLG-M2", "DLG-M4", "DLG-M5", "DLG-M6",
)  # fmt: skip
@pytest.mark.rule(
    "SND-2", "SND-3", "SND-4", "SND-5", "SND-7", "SND-8", "SND-10", "SND-11", "SND-14", "SND-16",
    "SND-18", "SND-22",
    "GRP-1", "GRP-2", "GRP-3", "GRP-4", "GRP-5", "GRP-6", "GRP-7", "GRP-8", "GRP-9", "GRP-10",
    "GRP-11", "GRP-12", "GRP-14", "GRP-15", "GRP-16", "GRP-18", "GRP-19", "GRP-20", "GRP-21",
    "GRP-23",
    "RCV-1", "RCV-2", "RCV-3", "RCV-4", "RCV-5", "RCV-7", "RCV-8", "RCV-9", "RCV-12", "RCV-13",
    "RCV-14", "RCV-15", "RCV-16", "RCV-18", "RCV-20", "RCV-21", "RCV-22", "RCV-24", "RCV-25",
    "RCV-27", "RCV-28", "RCV-29", "RCV-30", "RCV-31", "RCV-32", "RCV-35", "RCV-36", "RCV-37",
    "RCV-38", "RCV-39", "RCV-40", "RCV-41", "RCV-42", "RCV-43",
)  # fmt: skip
@pytest.mark.rule(
    "DLG-23", "DLG-T25", "DLG-T27", "DLG-T28", "GRP-17", "RCV-17", "RCV-19", "RCV-33",
    "OBJ-28", "OBJ-30", "OBJ-34", "OBJ-47", "OBJ-52", "OBJ-54",
    "CLP-37", "CLP-40", "CLP-110", "CLP-111", "CLP-112", "CLP-113", "CLP-114",
    "DLG-33", "MAN-12", "PBT-20", "PBT-23", "REL-3",
)  # fmt: skip
def test_the_engine_does_what_the_model_says(batch: int) -> None:
    play(FIRST + batch, MACHINES)


@pytest.mark.rule("HK-8")
def test_the_first_machine_of_a_process_is_as_it_would_be_later() -> None:
    found = []
    with patch.dict(engine._PREPARED, clear=True):
        for _ in range(2):
            one = engine.Engine(declaration(CATALOG), ("ann",), window=WindowOptions())
            found.append((one.now, one.instance.brokers["main"].ids.fresh()))
            one.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("module", sorted(REFERENCE.glob("*.py")), ids=lambda one: one.stem)
def test_the_reference_model_knows_nothing_of_the_engine(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            own = name.startswith("tests.model.reference.")
            assert own or name.split(".")[0] in sys.stdlib_module_names, name
