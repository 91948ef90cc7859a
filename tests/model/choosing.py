"""Choosing: small numbers become verbs on something that is there, for the model and for the wire.

Mostly they mean something; now and then they name what is gone, or what may not be sent.
"""

from itertools import count
from typing import Any

from brokerd.broker.window import WindowOptions
from tests.model.driver import Driver
from tests.model.engine import SMALL
from tests.model.objects import CATALOG, PAIRS
from tests.model.reference.model import Model, Verb
from tests.model.reference.state import Endpoint

CLIENTS = ("ann", "bob", "cid")
Made = tuple[Verb, tuple[str, list[Any]], str]
"""A verb for the model, the same for the wire, and as text."""


class Choosing:
    """What is there to be named by the next verb."""

    driver: Driver
    model: Model
    fast_paths = True
    """Whether the engine may take the fast path; `--no-fast-paths` switches it off for all."""

    def __init__(self) -> None:
        super().__init__()
        self._bodies = count(1)
        self._gone: list[bytes] = [b"nobody has this "]

    def start(self, *, small: bool) -> None:
        """Start the engine, with windows that hold everything or next to nothing."""
        window = SMALL if small else WindowOptions()
        self.driver = Driver(CATALOG, CLIENTS, window=window, fast_paths=self.fast_paths)
        self.model = self.driver.model

    def idle(self) -> list[str]:
        """The clients that may ask for something: nothing of theirs waits."""
        return [one for one in CLIENTS if one not in self.driver.asked]

    def _client(self, number: int) -> str:
        idle = self.idle()
        return idle[number % len(idle)]

    def _endpoints(self, client: str) -> list[Endpoint]:
        tx = self.driver.txs.get(client)
        found = [one for one in self.model.endpoints if one.handle is not None]
        return found + (tx.begun if tx is not None else [])

    def _handle(self, client: str, number: int) -> bytes:
        """A handle of an endpoint that is there; seldom another one."""
        endpoints = self._endpoints(client)
        if number == 63 or not endpoints:
            return self._gone[number % len(self._gone)]
        handle = endpoints[number % len(endpoints)].handle
        assert handle is not None
        return handle

    def _group(self, client: str, number: int) -> bytes:
        """A group as the client sees it; one that its own `move` has emptied is not named, since
        nobody says whether it is still there."""
        tx = self.driver.txs.get(client)
        endpoints = self._endpoints(client)
        seen = [one.group if tx is None else tx.group_of(one) for one in endpoints]
        groups = [one.id for one in seen if one.id is not None]
        return groups[number % len(groups)] if groups and number < 60 else b"no such group 00"

    def _queue(self, number: int) -> str:
        queues = list(CATALOG.queues)
        full = [one for one in queues if any(self._waiting_on(one))]
        queues = full if full and number % 8 else queues
        return queues[number % len(queues)]

    def _waiting_on(self, queue: str) -> list[bool]:
        return [bool(one.messages) for one in self.model.on_queue(queue)]

    def _message(self, endpoint: Endpoint | None, kind: int) -> tuple[str, bytes | None]:
        """A type, mostly one that may be sent, and a body."""
        body = None if kind == 5 else b"%d" % next(self._bodies)
        if endpoint is not None and endpoint.dialog.contract == "DEFAULT" and kind < 7:
            return "DEFAULT", body
        mine = "Ask" if endpoint is None or endpoint.is_initiator else "Answer"
        if kind < 3:
            return "Both", body
        if kind < 6:
            return mine, body
        if kind == 6:
            return "Nudge", None if next(self._bodies) % 4 else body
        kinds = ["Ask", "Answer", "urn:brokerd:EndDialog", "Unheard", "DEFAULT"]
        return kinds[next(self._bodies) % len(kinds)], body

    def _headers(self, body: bytes | None) -> dict[str, str | bytes]:
        """Headers for every third message; one without a body may have some, too."""
        number = next(self._bodies) if body is None else int(body)
        return {} if number % 3 else {"number": body or b"", "traceparent": f"00-{number:032x}"}

    def _endpoint(self, client: str, handle: bytes) -> Endpoint | None:
        return next((one for one in self._endpoints(client) if one.handle == handle), None)

    # Verbs as the model and the wire take them.

    def _begin_dialog(self, client: str, pair: int, relation: int, lifetime: float | None) -> Made:
        from_service, to_service, contract = PAIRS[pair % len(PAIRS)]
        handle = self.driver.names.fresh()
        options: dict[str, Any] = {} if contract is None else {"contract": contract}
        if relation in (1, 2):
            mates = [one for one in self._endpoints(client) if one.service == from_service]
            mates = mates or self._endpoints(client)
            if mates:
                options["related_conversation"] = mates[pair % len(mates)].handle
        elif relation == 3:
            options["related_group"] = self._group(client, pair)
        elif relation == 4:
            options["related_group"] = b"group of its own"
        if lifetime is not None:
            options["lifetime"] = round(self.driver.apart(lifetime, by=1)) if lifetime else 0
        verb: Verb = ("begin_dialog", {"handle": handle, "from_service": from_service} | options)
        verb[1]["to_service"] = to_service
        shown = ", ".join(f"{key}={self._shown(value)}" for key, value in options.items())
        text = (
            f"{self.driver.names.of(handle)} = begin_dialog({from_service}, {to_service}, {shown})"
        )
        return verb, ("begin_dialog", [handle, from_service, to_service, options]), text

    def _send(self, client: str, handles: list[bytes], kind: int, begun: int | None = None) -> Made:
        """`begun`: the pair of a dialog that is begun in the same breath."""
        message_type, body = self._message(self._endpoint(client, handles[0]), kind)
        if begun is not None and PAIRS[begun % len(PAIRS)].contract is None:
            message_type = "DEFAULT"
        headers = self._headers(body)
        about = {"handles": handles, "message_type": message_type, "body": body}
        verb: Verb = ("send", {**about, "headers": headers})
        names = "+".join(map(self.driver.names.of, handles))
        wire = handles if len(handles) > 1 else handles[0]
        return (
            verb,
            ("send", [wire, message_type, body, *([headers] if headers else [])]),
            f"send({names}, {message_type}, {body!r}, {headers!r})",
        )

    def _end(self, handles: list[bytes], error: int) -> Made:
        code, text = {0: (None, None), 1: (17, "broken"), 2: (0, "no code"), 3: (9, None)}[error]
        verb: Verb = ("end", {"handles": handles, "error": code, "text": text})
        shown = "" if code is None else f", error={code}, {text!r}"
        self._gone = [*self._gone[-5:], *handles][-6:]
        names = "+".join(map(self.driver.names.of, handles))
        wire = handles if len(handles) > 1 else handles[0]
        return verb, ("end", [wire, code, text]), f"end({names}{shown})"

    def _shown(self, value: object) -> str:
        return self.driver.names.of(value) if isinstance(value, bytes) else repr(value)

    def _ask(self, client: str, made: Made, wait: float | None = None) -> None:
        verb, (name, args), text = made
        self.driver.ask(client, text, verb, (name, *args), wait)

    def _receive_args(
        self, client: str, queue: int, limit: int | None, selector: int, number: int
    ) -> tuple[Verb, tuple[Any, ...], str]:
        where = self._queue(queue)
        conversation = group = None
        if selector == 1:
            conversation = self._handle(client, number)
        elif selector == 2:
            group = self._group(client, number)
        if selector and queue % 4:
            found = [one for one in self._endpoints(client) if conversation == one.handle]
            found += [one for one in self._endpoints(client) if group == one.group.id]
            where = found[0].queue if found else where
        args: dict[str, Any] = {
            "queue": where,
            "limit": limit,
            "conversation": conversation,
            "group": group,
        }
        shown = [where, *([f"max={limit}"] if limit is not None else [])]
        shown += [f"conversation={self.driver.names.of(conversation)}"] if conversation else []
        shown += [f"group={self.driver.names.of(group)}"] if group else []
        text = f"receive({', '.join(shown)})"
        return ("receive", args), (where, limit, conversation, group), text
