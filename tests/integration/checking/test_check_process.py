"""The process in which bodies are checked: what it bears, what ends it, who is blamed for it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from brokerd.broker.inspection import Inspection
from brokerd.broker.options import BrokerOptions
from brokerd.checking import process
from brokerd.checking.checker import InProcess, Limits, Outcome, Verdict
from brokerd.checking.child import FIT, READY, frame
from brokerd.checking.process import CheckProcess
from brokerd.config.settings import Settings
from brokerd.model import MessageType, Validation
from brokerd.telemetry.log import NullLog
from tests.integration.checking.patterns import (
    GIVES_UP,
    JSON,
    LARGE,
    MIB,
    PATTERN,
    SMALL_AND_DEAR,
)

SHORT = Limits(time=timedelta(milliseconds=100), memory=64 * MIB)


PLAIN = MessageType("Plain", Validation.VALID_JSON, '{"type": "object", "required": ["n"]}')
NONE_OF = [{"const": f"x{at}"} for at in range(1000)]
LONG_LIST = MessageType(
    "LongList", Validation.VALID_JSON, json.dumps({"items": {"not": {"anyOf": NONE_OF}}})
)

FITS = PLAIN, b'{"n": 1}'
UNFIT = PLAIN, b'{"m": 1}'
ENDLESS = LONG_LIST, json.dumps(["y"] * 200_000).encode()


class Log(NullLog):
    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})


class Checks(CheckProcess):
    """With a call to wait for."""

    async def verdict(self, kind: MessageType, body: bytes) -> Verdict:
        done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.check(kind, body, done.set_result)
        return await done


def run(test: Callable[[Checks], Awaitable[None]], limits: Limits = SHORT) -> None:
    async def main() -> None:
        checks = Checks(limits=limits, log=Log())
        try:
            await test(checks)
        finally:
            await checks.stop()

    asyncio.run(main())


@pytest.mark.rule("OBJ-61")
def test_a_body_fits_or_the_verdict_says_where_it_does_not() -> None:
    async def test(checks: Checks) -> None:
        started = [checks.pid is not None]
        assert await checks.verdict(*FITS) == Verdict(Outcome.FIT)
        started.append(checks.pid is not None)
        assert started == [False, True]  # it is started when it is needed
        refused = await checks.verdict(*UNFIT)
        assert refused.outcome is Outcome.UNFIT
        assert "required property" in refused.text
        assert (checks.counts.checked, checks.counts.unfit, checks.counts.restarts) == (2, 1, 0)

    run(test)


@pytest.mark.rule("OBJ-61", "OBJ-62", "BI-R5")
@pytest.mark.parametrize(
    ("asked", "outcome", "cause", "says"),
    [
        (ENDLESS, Outcome.OVERRUN, "time", "0.1 s of processor time (checks.time)"),
        (LARGE, Outcome.OVERRUN, "memory", "more than 8 MiB of memory (checks.memory)"),
        (GIVES_UP, Outcome.OVERRUN, "gave_up", "gave up"),
        (SMALL_AND_DEAR, Outcome.UNFIT, None, "not valid"),
    ],
    ids=["time", "memory", "gave_up", "explaining"],
)
def test_a_body_that_its_check_cannot_bear_has_no_other_effect(
    asked: tuple[MessageType, bytes], outcome: Outcome, cause: str | None, says: str
) -> None:
    async def test(checks: Checks) -> None:
        verdict = await checks.verdict(*asked)
        assert verdict.outcome is outcome
        assert says in verdict.text
        assert dict(checks.counts.overruns) == ({cause: 1} if cause else {})
        assert await checks.verdict(*FITS) == Verdict(Outcome.FIT)

    small = cause == "memory"
    time = timedelta(seconds=5) if cause in ("gave_up", "memory") else SHORT.time
    run(test, Limits(time=time, memory=8 * MIB if small else SHORT.memory))


@pytest.mark.rule("OBJ-62")
def test_a_body_that_is_alone_with_a_process_that_ends_has_no_verdict() -> None:
    async def test(checks: Checks) -> None:
        await checks.verdict(*FITS)
        first = checks.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        asked = asyncio.ensure_future(checks.verdict(*FITS))
        for _ in range(3):
            await asyncio.sleep(0)
        checks._sent[0].alone = True  # as one is that was there when a process ended
        os.kill(first, signal.SIGSEGV)
        with suppress(ProcessLookupError):  # it may be gone and waited for already
            os.kill(first, signal.SIGCONT)
        verdict = await asked
        assert verdict.outcome is Outcome.OVERRUN
        assert dict(checks.counts.overruns) == {"crash": 1}
        assert await checks.verdict(*FITS) == Verdict(Outcome.FIT)

    run(test)


@pytest.mark.rule("OBJ-61")
@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, 1), (1, 1), (4 * MIB, 1), (4 * MIB + 1, 2), (8 * MIB, 2), (64 * MIB + 1, 17)],
)
def test_a_check_has_a_second_for_each_four_mebibytes_or_part_of_that(
    size: int, seconds: float
) -> None:
    assert Limits().seconds(size) == seconds
    assert Limits(time=timedelta(seconds=3)).seconds(size) == 3 * seconds
    assert (Settings().checks.time, Settings().checks.memory) == (Limits().time, 256 * MIB)
    assert Limits().memory == 256 * MIB


@pytest.mark.rule("OBJ-61", "OBJ-18")
@pytest.mark.parametrize(
    ("kind", "size", "aside"),
    [
        (JSON, 16 * 1024 - 1, False),
        (JSON, 16 * 1024, True),
        (MessageType("Xml", Validation.WELL_FORMED_XML), 16 * 1024 - 1, False),
        (MessageType("Xml", Validation.WELL_FORMED_XML), 16 * 1024, True),
        (PLAIN, 1, True),
        (PATTERN, 1, True),
        (MessageType("Any"), 64 * MIB, False),
        (MessageType("Nothing", Validation.EMPTY), 64 * MIB, False),
    ],
)
def test_what_has_a_schema_or_is_large_is_checked_aside(
    kind: MessageType, size: int, aside: bool
) -> None:
    assert Settings().dialog.check_aside == BrokerOptions().check_aside
    inspection = Inspection(limit=Settings().dialog.check_aside, checker=InProcess())
    assert inspection.concerns(kind, size) is aside


@pytest.mark.rule("OBJ-61")
def test_the_body_of_314_bytes_is_one() -> None:
    assert len(SMALL_AND_DEAR[1]) == 314


@pytest.mark.rule("OBJ-61")
def test_nobody_is_blamed_for_another_body_and_all_are_answered_in_order() -> None:
    async def test(checks: Checks) -> None:
        asked = [FITS] * 5 + [ENDLESS] + [UNFIT] * 5 + [SMALL_AND_DEAR] + [FITS] * 5
        order: list[int] = []
        verdicts: dict[int, Verdict] = {}
        done = asyncio.Event()

        def answered(at: int, verdict: Verdict) -> None:
            order.append(at)
            verdicts[at] = verdict
            if len(order) == len(asked):
                done.set()

        for at, (kind, body) in enumerate(asked):
            checks.check(kind, body, lambda verdict, at=at: answered(at, verdict))  # type: ignore[misc]
        await done.wait()
        assert order == sorted(order)
        expected = [Outcome.FIT] * 5 + [Outcome.OVERRUN] + [Outcome.UNFIT] * 6 + [Outcome.FIT] * 5
        assert [verdicts[at].outcome for at in range(len(asked))] == expected

    run(test)


@pytest.mark.rule("OBJ-61")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_somebody_ends_is_replaced(number: signal.Signals) -> None:
    async def test(checks: Checks) -> None:
        await checks.verdict(*FITS)
        first = checks.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)  # it has what is asked now, and does nothing about it
        asked = [asyncio.ensure_future(checks.verdict(*one)) for one in (FITS, UNFIT, FITS)]
        for _ in range(3):  # they are asked, gathered, and sent
            await asyncio.sleep(0)
        assert len(checks._sent) == len(asked)
        os.kill(first, number)
        with suppress(ProcessLookupError):  # SIGKILL does not wait for it to go on
            os.kill(first, signal.SIGCONT)
        verdicts = await asyncio.gather(*asked)
        assert [one.outcome for one in verdicts] == [Outcome.FIT, Outcome.UNFIT, Outcome.FIT]
        assert checks.pid not in (None, first)
        assert checks.counts.restarts == 1

    run(test)


@pytest.mark.rule("OBJ-61")
def test_what_is_not_needed_any_more_is_not_checked() -> None:
    async def test(checks: Checks) -> None:
        told: list[Outcome] = []
        pending = checks.check(*ENDLESS, lambda verdict: told.append(verdict.outcome))
        pending.cancelled = True
        assert await checks.verdict(*FITS) == Verdict(Outcome.FIT)
        assert told == [Outcome.UNAVAILABLE]
        assert checks.counts.checked == 1

    run(test)


@pytest.mark.rule("OBJ-61")
def test_where_no_process_starts_those_that_wait_are_told(tmp_path: Path) -> None:
    """It is tried again: here the program is there in the end."""
    program = tmp_path / "python"

    async def main() -> None:
        log = Log()
        checks = Checks(
            limits=SHORT, log=log, command=(str(program), "-P", "-m", "brokerd.checking.child")
        )
        verdict = await checks.verdict(*FITS)
        assert verdict.outcome is Outcome.UNAVAILABLE
        assert "checks cannot be run" in verdict.text
        assert checks.counts.failing
        assert [line["event"] for line in log.lines] == ["broker.checks"] * 3
        program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)
        assert (await checks.verdict(*FITS)).outcome is Outcome.FIT
        assert not checks.counts.failing
        await checks.stop()

    asyncio.run(main())


@pytest.mark.rule("OBJ-61")
def test_one_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_WITHIN", 0.01)

    async def main() -> None:
        checks = Checks(limits=SHORT, log=Log(), command=("/bin/sleep", "1000"))
        verdict = await checks.verdict(*FITS)
        assert verdict.outcome is Outcome.UNAVAILABLE
        assert "was not ready" in verdict.text
        await checks.stop()

    asyncio.run(main())


@pytest.mark.rule("OBJ-61", "REL-38")
def test_other_limits_replace_the_process_and_blame_nobody() -> None:
    async def test(checks: Checks) -> None:
        await checks.verdict(*FITS)
        first = checks.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        asked = [asyncio.ensure_future(checks.verdict(*FITS))]
        for _ in range(3):
            await asyncio.sleep(0)
        checks._sent[0].alone = True
        checks.limit(Limits(time=SHORT.time, memory=2 * SHORT.memory))
        assert [one.outcome for one in await asyncio.gather(*asked)] == [Outcome.FIT]
        assert checks.pid != first

    run(test)


@pytest.mark.rule("OBJ-61")
def test_the_process_has_no_file_of_ours_and_goes_with_us(tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)

    async def test(checks: Checks) -> None:
        await checks.verdict(*FITS)
        pid = checks.pid
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
        await checks.stop()
        assert str(pid) not in os.listdir("/proc")

    try:
        run(test)
    finally:
        os.close(secret)


@pytest.mark.rule("OBJ-61")
def test_a_verdict_does_not_wait_for_the_next_check(tmp_path: Path) -> None:
    """Both requests are there at once; the second one ends the process, and no verdict with it."""
    body = b"[" + b'{"a":1},' * 50_000 + b"1]"
    requests = tmp_path / "requests"
    definition = (1, JSON.validation.value, None)
    requests.write_bytes(frame((60.0, definition, body)) + frame((0.001, 1, body)))
    with requests.open("rb") as given:
        ended = subprocess.run(
            [sys.executable, "-m", "brokerd.checking.child", str(1024 * MIB)],
            stdin=given,
            stdout=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == -signal.SIGPROF
    assert ended.stdout == frame((READY, "")) + frame((FIT, ""))
