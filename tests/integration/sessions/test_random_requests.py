"""Requests at random, cut anywhere: each is answered once, in its turn, and none is forgotten."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerd.protocol import client_frames as frames
from brokerd.sessions.session import ClientSession
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import session_options
from tests.integration.sessions.raw_client import Raw, ask, begin_dialog, client, send

SEEDS = range(400)
HANDLES = [b"handle 00000000%d" % number for number in range(3)]
QUEUES = ["shop", "desk"]
ENDS = ["commit", "rollback"]


class Talker:
    """A client that asks whatever comes into its head."""

    def __init__(self, raw: Raw, client_id: bytes, dice: random.Random) -> None:
        self.raw = raw
        self.client_id = client_id
        self.dice = dice
        self.asked: dict[int, tuple[int | None, str]] = {}
        self.answers: dict[int, str] = {}
        """What became of each request, in the order of hearing."""
        self._begun = self._tokens = 0
        self._open: list[int] = []
        self._unsent = b""

    @property
    def unanswered(self) -> list[int]:
        return [one for one in self.asked if one not in self.answers]

    def _ask(self, tx: int | None, verb: str, *args: object) -> bytes:
        number = len(self.asked) + 1
        self.asked[number] = tx, verb
        return ask(number, tx, verb, *args)

    def _commit(self, tx: int | None, verb: str, *args: object) -> bytes:
        return self._ask(tx, verb, *args, self._token())

    def open_dialogs(self) -> None:
        begins = [begin_dialog(handle) for handle in HANDLES]
        self.raw.write(self._ask(None, "transact", 0, begins))

    def say(self) -> None:
        """A few requests; a part of the bytes may stay for the next time."""
        for _ in range(self.dice.choice([1, 1, 1, 2, 12])):
            self._unsent += self._anything()
        whole = self.dice.random() < 0.6
        self._write(len(self._unsent) if whole else self.dice.randrange(len(self._unsent) + 1))
        if self.dice.random() < 0.05:
            self.raw.transport.pause_reading()

    def say_all(self) -> None:
        self.raw.transport.resume_reading()
        self._write(len(self._unsent))

    def _write(self, size: int) -> None:
        data, self._unsent = self._unsent[:size], self._unsent[size:]
        self.raw.write(data)

    def _anything(self) -> bytes:
        what = self.dice.choices(["begin", "in", "alone", "cancel", "bad"], [30, 45, 15, 5, 5])[0]
        if what == "begin":
            return self._begin()
        if what == "in" and self._open:
            return self._inside(self.dice.choice(self._open))
        if what == "cancel":
            return frames.encode_cancel(self.dice.randrange(len(self.asked) + 2))
        if what == "bad":
            return self._ask(self._begun + 1, "send", HANDLES[0], "Ask", b"of nothing")
        if self.dice.random() < 0.3:
            return self._commit(None, "receive", self._queue(), None, None, None, None)
        body = send(self.dice.choice(HANDLES), b"y")
        return self._ask(None, "transact", self._token(), [body])

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _queue(self) -> str:
        return self.dice.choice(QUEUES)

    def _begin(self) -> bytes:
        self._begun += 1
        self._open.append(self._begun)
        data = self._ask(self._begun, "begin")
        while self._begun in self._open and self.dice.random() < 0.7:
            data += self._inside(self._begun)
        return data

    def _inside(self, tx: int) -> bytes:
        verb = self.dice.choice(["receive", "receive", "get_group", "send", "send", *ENDS])
        if verb in ENDS:
            self._open.remove(tx)
        wait = self.dice.choice([-1, -1, 0, 20])
        match verb:
            case "receive":
                return self._ask(tx, verb, self._queue(), 1, None, None, wait)
            case "get_group":
                return self._ask(tx, verb, self._queue(), wait)
            case "send":
                return self._ask(tx, verb, self.dice.choice(HANDLES), "Ask", b"z")
            case "commit":
                return self._commit(tx, verb)
            case _:
                return self._ask(tx, verb)

    def give_up(self) -> None:
        """Cancel what waits, and end what is open."""
        self.say_all()
        cancelled = [frames.encode_cancel(one) for one in self.unanswered]
        self.raw.write(*cancelled, *[self._ask(tx, "rollback") for tx in self._open])
        self._open.clear()

    def hear(self) -> None:
        got, self.raw.got = self.raw.got, []
        for frame in got:
            match frame:
                case frames.Done(requests):
                    self._heard(requests, "done")
                case frames.Answer(request):
                    self._heard([request], "answer")
                case frames.Failed(request, code):
                    self._heard([request], code)
                case _:
                    raise AssertionError(frame)

    def _heard(self, requests: Sequence[int], outcome: str) -> None:
        for one in requests:
            assert one in self.asked
            assert one not in self.answers, "answered twice"
            self.answers[one] = outcome

    # What has to hold.

    def check_at_rest(self, session: ClientSession, limit: int) -> None:
        """What is not told is not done, but for each `begin` that nothing else can tell before the
        answer behind it comes, and these not near the limit."""
        unanswered = self.unanswered
        begun = [one for one in unanswered if self.asked[one][1] == "begin"]
        assert session.responses.outstanding == len(unanswered) - len(begun)
        for one in begun:
            tx, _ = self.asked[one]
            behind = [self.asked[other] for other in unanswered if other > one]
            assert next(verb for its, verb in behind if its == tx) in ("receive", "get_group")
            assert 2 * len(unanswered) < limit

    def check_order(self) -> None:
        """Those of a transaction came in their order, save what it refused or never took."""
        last: dict[int, int] = {}
        for one, outcome in self.answers.items():
            tx, _ = self.asked[one]
            if tx is not None and outcome not in ("busy", "no_such_tx"):
                assert last.get(tx, 0) < one
                last[tx] = one


@pytest.mark.rule("CLP-9", "CLP-30", "CLP-31")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_request_is_answered_once_and_in_its_turn(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    limits = {
        "outstanding": dice.choice([2, 3, 4, 5, 6, 8, 16, 1024]),
        "transactions": dice.choice([1, 4, 100]),
    }

    async def program(daemon: Daemon) -> None:
        talkers: list[Talker] = []
        for number in range(dice.choice([1, 1, 2])):
            client_id = b"client id 00000%d" % number
            talkers.append(Talker(await client(daemon, client_id), client_id, dice))
        sessions = daemon.instance.parts.sessions._connected
        talkers[0].open_dialogs()
        for _ in range(dice.randrange(10, 40)):
            for one in talkers:
                one.say()
            await daemon.pass_time(dice.choice([0, 0, 0.001, 0.1]))
            if dice.random() < 0.5:
                for one in talkers:
                    one.say_all()
                await daemon.pass_time(2)
                for one in talkers:
                    one.hear()
                    (session,) = (each for each in sessions if each.client_id == one.client_id)
                    one.check_at_rest(session, limits["outstanding"])
        while any(one.unanswered for one in talkers):
            for one in talkers:
                one.give_up()
            await daemon.pass_time(20)
            for one in talkers:
                one.hear()
        for one in talkers:
            one.check_order()
            assert not one.raw.is_gone()

    with session_options(limits):
        play(program, tmp_path, max_bytes=100_000)
