"""Coverage-guided fuzzing of each parser that somebody else's bytes reach (REL-32, BI-F).

`make fuzz` runs one target for a minute: TARGET=client_frames for another,
ARGS="-runs=10000000" for more, ARGS=FILE repeats one input. The corpus begins with valid inputs and
with what earlier runs found (tests/data/fuzz); what is found lies in build/fuzz.

Fails: on an exception that is no answer to bad input, on what a target asserts, and on memory that
grows.
"""

import gc
import resource
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import atheris

KEPT = Path(__file__).parent.parent / "data" / "fuzz"
WARM, MOST_GROWTH = 20_000, 96 * 1024 * 1024
"""After so many inputs, memory may grow by so many bytes; the fuzzer keeps its corpus in it too."""


class Growth:
    """A watch over the memory of the process."""

    def __init__(self, one_input: Callable[[bytes], None]) -> None:
        self._one_input = one_input
        self._inputs = 0
        self._at_first = 0

    def __call__(self, data: bytes) -> None:
        """Run one input, and fail if memory has grown."""
        self._one_input(data)
        self._inputs += 1
        if self._inputs % WARM:
            return
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._at_first = self._at_first or peak
        assert peak - self._at_first < MOST_GROWTH, f"{peak - self._at_first} bytes more"


def write_corpus(folder: Path, inputs: Iterable[tuple[str, bytes]], kept: Path) -> None:
    """Write the first inputs of a target."""
    folder.mkdir(parents=True, exist_ok=True)
    for label, data in inputs:
        (folder / label).write_bytes(data)
    for one in kept.glob("*"):
        (folder / one.name).write_bytes(one.read_bytes())


def main() -> None:
    """Fuzz the target that the first argument names."""
    name, *arguments = sys.argv[1:]
    with atheris.instrument_imports(include=["brokerd"]):
        from tests.fuzz import client_frames, peer_frames, texts  # noqa: PLC0415  # instrumented
    targets: dict[str, tuple[Callable[[bytes], None], Iterable[tuple[str, bytes]]]] = {
        "peer_frames": (peer_frames.one_input, peer_frames.corpus()),
        "client_frames": (client_frames.one_input, client_frames.corpus()),
        **{one: (partial(texts.parse_one, one), texts.corpus(one)) for one in texts.PARSERS},
    }
    if name not in targets:
        sys.exit(f"there is no target {name!r}; there is: {', '.join(targets)}")
    one_input, inputs = targets[name]
    if not any(not one.startswith("-") for one in arguments):
        home = Path("build/fuzz") / name
        write_corpus(home, inputs, KEPT / name)
        if not any(one.startswith(("-runs=", "-max_total_time=")) for one in arguments):
            arguments = ["-max_total_time=60", *arguments]
        arguments = [f"-artifact_prefix=build/fuzz/{name}-found-", *arguments, str(home)]
    atheris.Setup(
        [sys.argv[0], "-max_len=8192", "-rss_limit_mb=1024", "-timeout=10", *arguments],
        Growth(one_input),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
