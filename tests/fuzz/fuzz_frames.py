"""Coverage-guided fuzzing of what peers' bytes reach first: frames, headers, items (REL-32, BI-F).

`make fuzz` runs it for a minute; ARGS="-max_total_time=3600" for an hour, ARGS=FILE repeats one
input. The corpus begins with the committed frames; what is found lies in build/fuzz. An input is
one byte that says where a connection stands, one for how it is cut, then what the peer writes.

Fails: on an exception that is no answer of the protocol, on a connection that goes on after its
end, on bytes kept beyond what came, and on memory that grows.
"""

import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["brokerd.protocol"]):
    from brokerd.ids import BootId
    from brokerd.protocol.connection import Connection
    from brokerd.protocol.connection_effects import (
        AskArbitration,
        AskSettlement,
        Breathe,
        Closed,
        Effect,
        Limits,
        Received,
    )
    from brokerd.protocol.frames import BadItem, decode_boxcar, encode_item
    from brokerd.protocol.neighbour import Arbitrate, Hello, Verdict, encode
from tests import frames

MINE = Hello(frames.ME, BootId(b"b" * 16))
LOGIN = {
    "new": b"",
    "online": encode(frames.HELLO),
    "calling": b"",
    "calling online": encode(frames.HELLO) + encode(Arbitrate(Verdict.WON)),
}
PLACES = list(LOGIN)
WARM, MOST_GROWTH = 20_000, 96 * 1024 * 1024
"""After so many inputs, memory may grow by so many bytes; the fuzzer keeps its corpus in it too."""


class Growth:
    """Watches the memory of the process."""

    def __init__(self) -> None:
        self.inputs = 0
        self.at_first = 0

    def look(self) -> None:
        self.inputs += 1
        if self.inputs % WARM:
            return
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.at_first = self.at_first or peak
        assert peak - self.at_first < MOST_GROWTH, f"{peak - self.at_first} bytes more"


GROWTH = Growth()


def answered(made: Connection, effects: Iterator[Effect | Breathe]) -> list[Effect]:
    """What it says to the shell, which answers as the shell does."""
    said: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Breathe):
            continue
        said.append(effect)
        if isinstance(effect, AskArbitration):
            said += made.arbitrated(Verdict.WON, 100.0)
        elif isinstance(effect, AskSettlement):
            said += made.settled(100.0, keep=True)
    return said


def one_input(data: bytes) -> None:
    """Let a peer write this."""
    GROWTH.look()
    if len(data) < 2:
        return
    place = PLACES[data[0] % len(PLACES)]
    made = Connection(
        accepting="calling" not in place,
        hello=MINE,
        limits=Limits(),
        authorise=lambda _peer: None,
    )
    made.connected(100.0)
    answered(made, made.receive(LOGIN[place], 100.0))
    cut, rest = data[1] or len(data), data[2:]
    ends = 0
    for at in range(0, len(rest), cut):
        said = answered(made, made.receive(rest[at : at + cut], 101.0))
        assert not (ends and said), "it goes on after its end"
        ends += sum(isinstance(one, Closed) for one in said)
        assert len(made._reader._partial) <= len(rest)
        for one in said:
            if isinstance(one, Received):
                look_at(one)
    assert ends + len(made.broken("over")) == 1


def look_at(boxcar: Received) -> None:
    """What was taken can be sent, and then is the same."""
    good = [item for item in boxcar.items if not isinstance(item, BadItem)]
    again = decode_boxcar(b"".join(map(encode_item, good)))
    assert again == good


def corpus(folder: Path) -> None:
    """The committed frames, in the form of inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    online, new = PLACES.index("online"), PLACES.index("new")
    for name, data in frames.committed_valid().items():
        place = new if name == "hello" else online
        (folder / name).write_bytes(bytes([place, 0]) + data)
        (folder / f"{name}-in-threes").write_bytes(bytes([place + 2, 3]) + data)
    for bad in frames.committed_bad():
        place = new if bad.when == "login" else online
        (folder / bad.name).write_bytes(bytes([place, 0]) + bad.data)


def main() -> None:
    arguments = sys.argv[1:]
    if not any(not one.startswith("-") for one in arguments):
        home = Path("build/fuzz/frames")
        corpus(home)
        found = Path("build/fuzz/found-")
        arguments = ["-max_total_time=60", f"-artifact_prefix={found}", *arguments, str(home)]
    atheris.Setup([sys.argv[0], "-max_len=8192", "-rss_limit_mb=1024", *arguments], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
