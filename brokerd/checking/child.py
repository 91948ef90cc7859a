"""Child: the process that checks bodies, one after another, each with its limits (OBJ-61).

Reads:  requests from standard input.      Calls: validation.
Never:  opens a file, talks to any process but its parent, or outlives it: the process ends at the
        end of its input.
Fails:  as a whole. Too much processor time ends the process with SIGPROF. Too much memory either
        is an error in Python, which is answered, or ends the process in the library that requested
        the memory; the parent knows which check was running.

    python -m brokerd.checking.child MEMORY

Input and output are frames: 4 bytes of length, then msgpack. A request is
`[seconds, definition, body]`, where the definition is a number, or `[number, validation, schema]`
the first time; answers come in the order of the requests.
"""

import importlib
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Final

import msgspec

from brokerd.clock import SystemClock
from brokerd.model import MessageType, Validation
from brokerd.objects.validation import GaveUp, problem

READY: Final = 0
"""Answer of a child that has started. Each answer is one of these numbers and a text."""
FIT: Final = 1
UNFIT: Final = 2
REFUSED: Final = 3
"""Answer for an unfit body; the answer with the reason follows, if there is time for it."""
NO_MEMORY: Final = 4
GAVE_UP: Final = 5
EXPLAINING: Final = 0.1
"""Seconds of processor time to find the position of a fault in a body that is already refused."""
LENGTH: Final = 4

_LOADED_AHEAD: Final = ("lxml.etree", "jsonschema_rs")
_READ: Final = 1024 * 1024
_MOST_UNWRITTEN: Final = 32
_LONGEST_UNWRITTEN: Final = 0.01
"""Seconds after which answers are written although more requests wait: a caller must not wait for
the checks behind its own, and the parent must not mistake a busy child for a stalled one. Answers
to small bodies come faster and are written together."""

Definition = int | tuple[int, str, str | None]
Request = tuple[float, Definition, bytes]
Answer = tuple[int, str]


def frame(value: object) -> bytes:
    """Return a value encoded as a frame, as both sides write it."""
    encoded = msgspec.msgpack.encode(value)
    return len(encoded).to_bytes(LENGTH, "big") + encoded


class Child:
    """The loop of the process, which reads requests and writes answers."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Request)
        self._kinds: dict[int, MessageType] = {}
        self._clock = SystemClock()
        self._unwritten: list[bytes] = []
        self._written_at = 0.0
        self._left = bytearray()

    def run(self) -> None:
        """Answer requests until the input ends."""
        self._answer(READY)
        self._write()
        while (request := self._next()) is not None:
            seconds, definition, body = request
            signal.setitimer(signal.ITIMER_PROF, seconds)
            self._answer(*self._check(self._kind(definition), body))
            signal.setitimer(signal.ITIMER_PROF, 0)
            unwritten_for = self._clock.monotonic() - self._written_at
            if len(self._unwritten) >= _MOST_UNWRITTEN or unwritten_for >= _LONGEST_UNWRITTEN:
                self._write()

    def _next(self) -> Request | None:
        """Return the next request; None = the input has ended.

        Write all answers before waiting for input.
        """
        left = self._left
        while len(left) < LENGTH or len(left) < (end := LENGTH + _length(left)):
            self._write()
            part = os.read(0, _READ)
            if not part:
                return None
            left += part
        with memoryview(left) as whole, whole[LENGTH:end] as encoded:
            request: Request = self._decoder.decode(encoded)
        del left[:end]
        return request

    def _kind(self, definition: Definition) -> MessageType:
        if isinstance(definition, int):
            return self._kinds[definition]
        number, validation, schema = definition
        kind = MessageType("", Validation(validation), schema)
        self._kinds[number] = kind
        return kind

    def _check(self, kind: MessageType, body: bytes) -> Answer:
        try:
            text = problem(kind, body, self._refused)
        except GaveUp as gave_up:
            return GAVE_UP, str(gave_up)
        except MemoryError:
            return NO_MEMORY, ""
        except Exception as error:  # noqa: BLE001  # per body: a library may raise anything
            return GAVE_UP, f"{type(error).__name__}: {error}"
        return (UNFIT, text) if text else (FIT, "")

    def _refused(self) -> None:
        self._answer(REFUSED)
        self._write()
        # The body is unfit already: limit the time left for the reason, so that it cannot cost a
        # whole check. A timer at 0 would be off, hence `or`.
        left = signal.getitimer(signal.ITIMER_PROF)[0]
        signal.setitimer(signal.ITIMER_PROF, min(left, EXPLAINING) or EXPLAINING)

    def _answer(self, what: int, text: str = "") -> None:
        self._unwritten.append(frame((what, text)))

    def _write(self) -> None:
        written = b"".join(self._unwritten)
        self._unwritten.clear()
        while written:
            written = written[os.write(1, written) :]
        self._written_at = self._clock.monotonic()


def _length(left: bytearray) -> int:
    return int.from_bytes(left[:LENGTH], "big")


def limit(memory: int) -> None:
    """Limit this process to `memory` bytes more than it has now, and to no core file."""
    with open("/proc/self/statm", encoding="ascii") as sizes:  # not a regular file
        pages = int(sizes.read().split()[0])
    whole = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (whole, whole))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Load the libraries that checks may need, then set the limits and answer requests."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for name in _LOADED_AHEAD:
        with suppress(ImportError):  # no type can need it: its schema would have been refused
            importlib.import_module(name)
    with suppress(OSError):  # a system without /proc: time is limited, memory is not
        limit(int(sys.argv[1]))
    with suppress(BrokenPipeError):
        Child().run()


if __name__ == "__main__":
    main()
