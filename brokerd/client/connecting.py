"""Connecting: the first connection of a session, made when `connect(…)` is awaited or entered.

Reads:  addresses and options, BROKERD_ADDRESS, BROKERD_READER, BROKERD_TLS_….
Calls:  client.link.
Never:  knows a verb; the caller passes the class of the session.
"""

import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack

from brokerd.client.address import Connector, connector_for, default_address
from brokerd.client.arguments import wire_id
from brokerd.client.link import Link
from brokerd.client.recorder import Recorder
from brokerd.client.tls import Tls, default_tls
from brokerd.clock import Clock, SystemClock
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import ConnectionLost, DaemonUnreachable, InvalidArgument, TooManyOpenFiles
from brokerd.ids import ClientId, IdSource, RandomIds
from brokerd.protocol.client_frames import encode_hello

SDK: Final = "python 1"
READER: Final = "BROKERD_READER"
START: Final = "start it with: brokerd serve; or give its address, or BROKERD_ADDRESS"
"""Remedy where no daemon answers and nothing more exact is known."""
RETRY: Final = 60.0
"""Seconds for which the client tries to replace a lost connection, by default."""

S = TypeVar("S", bound=AbstractAsyncContextManager[Any])


class Connecting(Generic[S]):
    """A session that is not connected yet: await it, or enter it with `async with`."""

    def __init__(self, open_one: Callable[[], Coroutine[Any, Any, S]]) -> None:
        self._open = open_one
        self._session: S | None = None

    def __await__(self) -> Generator[Any, None, S]:
        """Connect, and return the session."""
        return self._open().__await__()

    async def __aenter__(self) -> S:
        """Connect, and return the session, which is closed at the end of the block.

        Raises:
            BrokerError: an error that `connect` names.
        """
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        assert self._session is not None, "left without having been entered"
        await self._session.__aexit__(kind, error, trace)


class Options(TypedDict, total=False):
    """Options of a connection; see `connect`."""

    client_id: bytes | None
    retry: float | timedelta
    wait: float | timedelta
    connector: Connector | None
    clock: Clock | None
    ids: IdSource | None
    rng: Random | None
    pid: int | None
    recorder: Recorder | None
    tls: Tls | None


def refuse_unknown(options: Mapping[str, object], more: Iterable[str] = ()) -> None:
    """Refuse an option that does not exist; `more`: parameters of `connect` to compare it with.

    Raises:
        InvalidArgument: there is no option of this name.
    """
    known = {*Options.__annotations__, "address", "broker", *more}
    for name in options:
        if name not in Options.__annotations__:
            near = did_you_mean(name, known)
            raise InvalidArgument(
                f"connect has no option {name!r}{near}", hint="help(brokerd.connect) names them all"
            )


async def open_session(
    make: Callable[..., S], address: str | None, broker: str, **options: Unpack[Options]
) -> S:
    """Make the first connection, and return the session that `make` creates on it.

    Raises:
        BrokerError: an error that `connect` names.
    """
    refuse_unknown(options)
    where = address or default_address()
    ids = options.get("ids") or RandomIds()
    given, pid = options.get("client_id"), options.get("pid")
    client = ClientId(ids.fresh() if given is None else wire_id(given, "client_id"))
    info: dict[str, str | int] = {"sdk": SDK, "pid": os.getpid() if pid is None else pid}
    if READER in os.environ:  # started by activation: this tells the daemon which reader it is
        info["reader"] = os.environ[READER]
    link = Link(
        connector=options.get("connector")
        or connector_for(where, options.get("tls") or default_tls()),
        hello=encode_hello(client, broker, info),
        clock=options.get("clock") or SystemClock(),
        rng=options.get("rng") or Random(ids.fresh()),  # noqa: S311  # jitter, not secrets
        retry=_seconds(options.get("retry", RETRY)),
    )
    try:
        await link.start(_seconds(options.get("wait", 0)))
    except TooManyOpenFiles:
        raise
    except ConnectionLost as error:
        raise DaemonUnreachable(
            f"no daemon answers at {where}: {error.message}",
            hint=START if error.hint == ConnectionLost.hint else error.hint,
        ) from error
    return make(link=link, client_id=client, ids=ids, recorder=options.get("recorder"))


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
