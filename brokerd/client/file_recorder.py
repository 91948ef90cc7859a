"""FileRecorder: events of sessions, one JSON line per event, for `brokerd bench replay`.

The format is that of a history (reliability 7.1). Of bodies it keeps only the sizes.
Called: by the sessions it was given to (`connect(..., recorder=...)`), in their loop.
Never:  writes the content of a message, or waits for the disk.
"""

from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from brokerd.clock import Clock, SystemClock

VERSION: Final = 1
"""Version of the file format."""
_KEPT: Final = ("queue", "seq", "token", "reason", "savepoint")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event; `brokerd.testing.check` documents each `op`."""

    i: int
    """Number of the event in its file."""
    t: int
    """Time in microseconds of the machine's monotonic clock, which all its processes share."""
    op: str
    kind: str
    client: str = ""
    tx: int | None = None
    """Number of the transaction among those of its client."""
    token: int | None = None
    dialog: str | None = None
    """Handle of the endpoint, which is one side of a dialog."""
    seq: int | None = None
    group: str | None = None
    queue: str | None = None
    reason: str | None = None
    savepoint: int | None = None
    size: int | None = None
    """Size of the body in bytes."""


class FileRecorder:
    """A recorder that writes a file; several sessions of one process may share it.

    Closing the recorder, or leaving its `with` block, writes the remaining events. If the program
    dies before that, the last events are missing from the file, which is still valid.
    """

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        """Create the file.

        Raises:
            FileExistsError: the file exists; a restarted program would overwrite its recording.
            OSError: the file cannot be created.
        """
        self._clock = clock or SystemClock()
        self._encode = msgspec.json.Encoder().encode
        self._count = 0
        self._file = Path(path).open("xb")  # noqa: SIM115  # open until `close`
        self._file.write(self._encode({"version": VERSION}) + b"\n")

    def __enter__(self) -> Self:
        """Return the recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the recorder."""
        self.close()

    def event(self, **fields: object) -> None:
        """Record one event.

        Raises:
            ValueError: the recorder is closed.
            OSError: the event cannot be written.
        """
        kept: dict[str, object] = {name: fields[name] for name in _KEPT if name in fields}
        kept |= {"op": fields["op"], "kind": fields["kind"], "tx": fields.get("tx")}
        for name, field in (("client", "client"), ("dialog", "handle"), ("group", "group")):
            value = fields.get(field)
            if isinstance(value, bytes):
                kept[name] = value.hex()
        if "body" in fields:
            body = fields["body"]
            kept["size"] = len(body) if isinstance(body, bytes) else 0
        line = Line(i=self._count, t=round(self._clock.monotonic() * 1e6), **kept)  # type: ignore[arg-type]  # the caller passes values of these types
        self._count += 1
        self._file.write(self._encode(line) + b"\n")

    def close(self) -> None:
        """Write the remaining events and close the file.

        Raises:
            OSError: the events cannot be written.
        """
        self._file.close()
