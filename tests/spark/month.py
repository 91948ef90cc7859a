"""A month of two instances, as it lands, with faults planted on known days.

Every line is as the daemon writes it, and every segment is sealed by the daemon's own code; what is
planted, and what a report has to say of it, stands in `FAULTS`. `whole_month.py` writes it large.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from brokerd.telemetry.segments import OPEN, SEALED, Facts, read_manifest, seal
from tests.spark.segments import SECOND, bucket

FIRST = date(2026, 10, 1)
DAYS = 30
HOUR = 3600 * SECOND
Line = dict[str, Any]
Change = Callable[[Line, int], Line | None]
"""Returns what is written in place of a line in this hour of the day; None = nothing."""


@dataclass(frozen=True)
class Planted:
    """What a day's report has to say, and how grave that is."""

    status: int
    text: str


FAULTS = {
    "garbage": Planted(1, "could not be used"),
    "version": Planted(1, "in a version of the log that this report cannot read"),
    "twice": Planted(0, "there twice, and counted once"),
    "hour": Planted(1, "hours 03:00 to 04:00 of east"),
    "storm": Planted(2, "New today, 240 times: parking retry_scheduled of orders at west"),
    "leak": Planted(1, "Open dialogs at east grow"),
    "lost": Planted(2, "1 message is unaccounted for."),
    "slow": Planted(1, "The way from east to peer TCP://west:4022 took up to"),
    "clock": Planted(1, "A clock went back 1 time"),
    "doubled": Planted(2, "1 message arrived more often than sent."),
    "unheard": Planted(1, "20 messages cannot be judged"),
    "unheard overnight": Planted(1, "20 messages cannot be judged"),
    "older": Planted(2, "1 message is unaccounted for."),
    "overnight": Planted(2, "1 message is unaccounted for."),
    "copied": Planted(1, "1 segment was set aside whole: "),
}
"""All that can be planted. A leak shows on its third night; to be slow needs a week before it."""

_UNBALANCED = ("lost", "doubled", "unheard", "older", "overnight")

WHEN = {name: number for number, name in enumerate(FAULTS, 1)} | {"leak": 10, "slow": 11}
WHEN |= {"doubled": 12, "unheard": 13, "older": 14, "overnight": 16, "copied": 17}
WHEN |= {"unheard overnight": 20}
"""On which day of the month each is planted; every other day is fine."""

NEVER = dict.fromkeys(FAULTS, 10**6)
"""A month without any fault; with one of them put on a day, it is there alone."""

FEW = NEVER | {"garbage": 4, "version": 4, "twice": 5, "hour": 5, "storm": 6, "clock": 6}
FEW |= {"copied": 6, "leak": 7, "lost": 7, "slow": 7}
FEW_DAYS = (0, 4, 5, 6, 7)
"""The same on as few days as will do, for the test suite; day 0 is what day 7 is compared with."""

KEPT = str(UUID(int=10**12))
"""The dialog whose group a reader keeps."""

HOT = str(UUID(int=1))
"""The group that has two messages in five of each queue, and that a reader keeps each morning."""

AHEAD_S = 0.25
"""By so much the clock of west is ahead of that of east."""


def planted(when: Mapping[str, int], number: int) -> list[Planted]:
    """What the report of a day has to say."""
    return [FAULTS[name] for name, day in when.items() if day == number]


def lost(number: int) -> str:
    """The dialog that has lost a message on a day, or got one too many, or has but one side."""
    return str(UUID(int=10**12 + number))


def day_of(number: int) -> str:
    """The day with this number, from 0."""
    return (FIRST + timedelta(number)).isoformat()


def midnight(number: int) -> int:
    """When it begins, in UTC microseconds."""
    return (FIRST - date(1970, 1, 1) + timedelta(number)).days * 24 * HOUR


@dataclass
class Log:
    """What one instance writes: lines in order of time, sealed into a landing directory."""

    instance: str
    boot: str
    landing: Path
    seq: int = 0
    waiting: list[tuple[int, int, str, Callable[[int], bytes]]] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    first: tuple[int, int] | None = None
    last: tuple[int, int] = (0, 0)
    written: int = 0
    change: Callable[[Line], Line | None] | None = None

    def add(self, kind: str, at: int, /, **fields: Any) -> None:
        line = {"v": 1, "kind": kind, "instance": self.instance, "broker": "main"}
        line |= {"boot_id": self.boot, "at": at} | fields
        self.write(kind, at, lambda seq: json.dumps(line | {"seq": seq}).encode())

    def write(self, kind: str, at: int, line: Callable[[int], bytes]) -> None:
        """A line that is made when its number is known."""
        self.waiting.append((at, len(self.waiting), kind, line))

    def number(self) -> None:
        """Put what was added since the last call in order."""
        self.waiting.sort()
        for at, _, kind, line in self.waiting:
            raw = line(self.seq)
            if self.change is not None:
                changed = self.change(json.loads(raw))
                if changed is None:
                    continue
                raw = json.dumps(changed).encode()
            self.first = self.first or (self.seq, at)
            self.last = (self.seq, at)
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            self.lines.append(raw)
            self.seq += 1
        self.written += len(self.waiting)
        self.waiting.clear()

    def seal(self, day: str) -> Path | None:
        """Let what was added land; the segment."""
        if self.first is None:
            return None
        facts = Facts(
            instance=self.instance,
            boot_id=self.boot,
            first_seq=self.first[0],
            last_seq=self.last[0],
            first_at=self.first[1],
            last_at=self.last[1],
            day=day,
            lines=self.kinds,
        )
        path = self.landing / f"{self.instance}-{self.boot}-{facts.first_seq:010}{OPEN}"
        path.write_bytes(b"".join(line + b"\n" for line in self.lines))
        manifest = seal(path, facts)
        self.lines, self.kinds, self.first = [], {}, None
        return self.landing / day / manifest.segment


@dataclass(frozen=True)
class Fault:
    """A fault of the daemons or their logs, and what the report of its (last) day has to say."""

    status: int
    texts: tuple[str, ...]
    change: Change | None = None
    add: "Callable[[Month, int, int], None] | None" = None
    """Adds lines of an hour: called with the day and the hour, before its other lines are made."""
    land: Callable[[Path], None] | None = None
    """Spoils what has landed of the first day, in its directory."""
    days: int = 1
    rest: int = 0
    """Days after it that say that lines are missing, and are not judged."""
    when: str = ""
    """The name in `FAULTS` of what is planted."""


@dataclass
class Month:
    """Writes the days; `dialogs` an hour, `steps` intervals an hour, segments of some hours."""

    landing: Path
    dialogs: int = 1
    steps: int = 1
    hours: int = 24
    when: Mapping[str, int] = field(default_factory=WHEN.copy)
    seed: int = 1
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """Further faults by their days."""
    third: bool = False
    """Whether there is a third instance, with a queue of its own and without peers."""

    def __post_init__(self) -> None:
        self.landing.mkdir(parents=True, exist_ok=True)
        self.rng = random.Random(self.seed)
        self.logs = {
            "east": Log("east", "a" * 32, self.landing),
            "west": Log("west", "b" * 32, self.landing),
        }
        if self.third:
            self.logs["north"] = Log("north", "c" * 32, self.landing)
        self.number = 0

    def write(self, days: Iterable[int] = range(DAYS), say: Callable[[str], object] = str) -> int:
        """Write these days, from the first; how many lines that were."""
        for day in days:
            self._day(day)
            say(day_of(day))
        return sum(log.written for log in self.logs.values())

    def _day(self, day: int) -> None:
        each = 1 if day == self.when["hour"] else self.hours
        fault = self.faults.get(day)
        for hour in range(24):
            if fault is not None and fault.add is not None:
                fault.add(self, day, hour)
            for log in self.logs.values():
                self._hour(log, day, hour)
            self._dialogs(day, hour)
            for log in self.logs.values():
                log.change = _at(fault.change, hour) if fault and fault.change else None
                log.number()
            if (hour + 1) % each == 0:
                for log in self.logs.values():
                    self._spoil(log, day, hour)
                    self._seal(log, day, hour)
        if day == self.when["copied"]:
            segment = min(min(self.landing.glob("20*")).glob(f"west-*{SEALED}"))
            for path in (segment, manifest_of(segment)):
                shutil.copy(path, self.landing / day_of(day))
        if fault is not None and fault.land is not None and self.faults.get(day - 1) is not fault:
            fault.land(self.landing / day_of(day))

    def stop(self, instance: str, at: int) -> None:
        """Stop an instance in order, before an hour has lines."""
        log = self.logs[instance]
        log.add("mark", at, what="stopped")
        log.change = None
        log.number()

    def restart(self, instance: str, at: int, *, orderly: bool, boot: str = "") -> None:
        """Begin another boot of an instance, after an orderly stop or a crash; `boot`: its id."""
        log = self.logs[instance]
        log.seal((date(1970, 1, 1) + timedelta(microseconds=at)).isoformat())
        log.boot, log.seq = boot or f"{self.rng.getrandbits(128):032x}", 0
        log.change = None
        if not orderly:
            log.add("mark", at, what="recovered")
        log.add("mark", at + 1, what="started")
        log.number()

    def _hour(self, log: Log, day: int, hour: int) -> None:
        begin = midnight(day) + hour * HOUR
        width = HOUR // self.steps
        back = 2 * HOUR if (day, log.instance) == (self.when["clock"], "west") and hour >= 20 else 0
        for step in range(self.steps):
            since = 0 if (hour, step) == (20, 0) else back  # it went back within this interval
            times = {"from_at": begin + step * width - since}
            self._intervals(log, day, hour, begin + (step + 1) * width - 1 - back, times)
        if log.instance == "west":
            for reader in range(2):
                text = f"TimeoutError: order {self.rng.randrange(10**6)} took {reader + 30} s"
                self._failed(log, begin + HOUR // 2 - back, "broker.activation", "aborted", text)
        if (day, hour, log.instance) == (self.when["storm"], 9, "west"):
            for _ in range(240):
                text = f"ValueError: '{self.rng.random()}' is no price"
                self._failed(log, begin + HOUR // 2, "broker.parking", "retry_scheduled", text)

    def _intervals(self, log: Log, day: int, hour: int, at: int, times: Line) -> None:
        queue = {"east": "replies", "west": "orders"}.get(log.instance, "archive")
        rate = 60 // self.steps
        parked = 3.0 if log.instance == "west" and (day, hour) >= (self.when["storm"], 9) else 0.0
        gauges = {"ready": 0.0, "readers": 2.0, "max_readers": 4.0}
        if parked:
            gauges["parked"] = parked
        log.add(
            "interval",
            at,
            **times,
            scope="queue",
            queue=queue,
            counters={"enqueued": rate, "received": rate},
            gauges=gauges,
            histograms={
                "wait_us": self._times(rate, 9.5),
                "queue_us": self._times(rate, 8.5),
                "handler_us": self._times(rate, 9.0),
            },
            groups={HOT: rate * 2 // 5, str(UUID(int=2 + hour)): rate // 10},
            groups_within=1,
            **self._held(log, day, hour, at),
        )
        if log.instance in {"east", "west"}:
            self._between(log, day, hour, at, times)
        leaked = (
            40.0 * min(max(day - self.when["leak"] + 3, 0), 3) if log.instance == "east" else 0.0
        )
        stored = {"store_bytes": 1e8 + day * 1e5, "endpoints": 100 + leaked}
        stored["endpoints_CO"] = 90 + leaked
        stored["endpoints_CD"] = 10.0
        stored["wal_bytes"] = 4e6 + 1e5 * hour
        inside = {"commit_us": self._times(9, 7.5)}
        about: Line = {"scope": "instance", "counters": {"flushes": 9}, "histograms": inside}
        log.add("interval", at, **times, **about, gauges=stored)
        machine = {"disk_free_bytes": 1e12 - day * 1e6, "rss_bytes": 1e8}
        log.add("interval", at, **times, scope="instance", counters={}, gauges=machine, broker="")

    def _between(self, log: Log, day: int, hour: int, at: int, times: Line) -> None:
        """What goes between the first two instances."""
        rate = 60 // self.steps
        peer = "west" if log.instance == "east" else "east"
        slow = 20 if (day, log.instance) == (self.when["slow"], "east") and 8 <= hour < 14 else 1
        log.add(
            "interval",
            at,
            **times,
            scope="destination",
            destination=f"TCP://{peer}:4022",
            counters={"fragments_sent": rate, "fragments_received": rate},
            gauges={"clock_ahead_s": AHEAD_S if peer == "west" else -AHEAD_S},
            histograms={
                "outbox_us": self._times(rate, 7.0),
                "wire_us": self._times(rate, 9.2, slow),
            },
        )
        ways = ("shop", "warehouse") if log.instance == "east" else ("warehouse", "shop")
        for way, counter in ((ways, "sent"), (ways[::-1], "received")):
            pair = {"from_service": way[0], "to_service": way[1], "contract": "ordering"}
            log.add("interval", at, **times, scope="pair", counters={counter: rate}, **pair)

    def _held(self, log: Log, day: int, hour: int, at: int) -> Line:
        """From 09:30 on a reader of west keeps a group for the rest of the hour, and the next."""
        since = midnight(day) + 9 * HOUR + HOUR // 2
        if log.instance != "west" or hour not in {9, 10} or at < since:
            return {}
        by = "reader 1, client 0badcafe (pid 77), latest verb receive"
        return {"held": [{"group": HOT, "conversation_id": KEPT, "by": by, "since_at": since}]}

    def _times(self, count: int, mean: float, factor: float = 1.0) -> dict[str, int]:
        found: dict[str, int] = {}
        for _ in range(count):
            key = bucket(self.rng.lognormvariate(mean, 0.4) * factor)
            found[key] = found.get(key, 0) + 1
        return found

    def _failed(self, log: Log, at: int, event: str, subclass: str, text: str) -> None:
        fields = {"queue": "orders", "error": text}
        log.add("event", at, event=event, subclass=subclass, severity="warning", fields=fields)

    def _dialogs(self, day: int, hour: int) -> None:
        begin = midnight(day) + hour * HOUR
        for one in range(self.dialogs):
            at = begin + HOUR // 6 + one * HOUR // 2 // self.dialogs
            self.number += 1
            name = str(UUID(int=self.number))
            if day == self.when["clock"] and hour >= 20:
                return  # the clock of west is two hours behind
            if one == 0 and self._unbalanced(day, hour, at):
                continue
            self._side("east", at, name, received=10)
            self._side("west", at + SECOND, name, received=10)

    def _unbalanced(self, day: int, hour: int, at: int) -> bool:
        """The first dialog of an hour, if it is planted."""
        name = next((name for name in _UNBALANCED if self.when[name] == day), "")
        if hour == 23 and day == self.when["overnight"] - 1:
            self._side("east", midnight(day + 1) - 300 * SECOND, lost(day + 1), received=10)
        if hour == 23 and day == self.when["unheard overnight"] - 1:  # judged with the next day
            self._side("west", midnight(day + 1) - 300 * SECOND, lost(day + 1), received=10)
        if hour != 11 or not name:
            return False
        if name in {"lost", "doubled"}:
            self._side("east", at, lost(day), received=10)
        if name == "older":  # it says that all was acknowledged, and goes on
            self._side("east", at, lost(day), received=10, state=b"open")
            at += 300 * SECOND
        received = {"doubled": 11, "unheard": 10}.get(name, 9)
        lasted = 60 * SECOND
        if name == "overnight":  # its initiator began and ended before midnight
            lasted = at + SECOND - midnight(day) + 330 * SECOND
        self._side("west", at + SECOND, lost(day), received=received, lasted=lasted)
        return True

    def _side(
        self,
        where: str,
        at: int,
        name: str,
        received: int,
        *,
        state: bytes = b"closed",
        lasted: int = 60 * SECOND,
    ) -> None:
        log = self.logs[where]
        is_initiator = where == "east"
        service, far = ("shop", "warehouse") if is_initiator else ("warehouse", "shop")
        role = b"true" if is_initiator else b"false"
        head = (where.encode(), log.boot.encode())
        begun = at - lasted
        body = (state, name.encode(), role, service.encode(), far.encode(), received, begun, at)
        log.write("dialog", at, lambda seq: _DIALOG % (*head, seq, at, *body))

    def _spoil(self, log: Log, day: int, hour: int) -> None:
        """Lines that no report can use: 1 % of rubbish, and what a later version writes."""
        if day == self.when["garbage"]:
            for _ in range(max(len(log.lines) // 100, 1)):
                junk = self.rng.choice([b"\x00\x00\x00", b'{"v":1,"kind":"in', b"\xff\xfe rubbish"])
                log.lines.insert(self.rng.randrange(len(log.lines)), junk)
        if day == self.when["version"] and hour == 23:
            for number in range(5):
                at = midnight(day + 1) - 10 + number
                log.add("interval", at, from_at=at - 1, scope="queue", queue="orders", v=2)
            log.number()

    def _seal(self, log: Log, day: int, hour: int) -> None:
        path = log.seal(day_of(day))
        if path is None:
            return
        if (day, hour, log.instance) == (self.when["hour"], 3, "east"):
            path.unlink()
            manifest_of(path).unlink()
        if (day, hour, log.instance) == (self.when["twice"], 23, "west"):
            _copy(path, path.with_name(path.name.replace(SEALED, f"-again{SEALED}")))


def _at(change: Change, hour: int) -> Callable[[Line], Line | None]:
    return lambda line: change(line, hour)


_DIALOG = (
    b'{"v":1,"kind":"dialog","instance":"%s","broker":"main","boot_id":"%s","seq":%d,"at":%d,'
    b'"state":"%s","conversation_id":"%s","is_initiator":%s,"service":"%s",'
    b'"far_service":"%s","contract":"ordering","sent":10,"acknowledged":10,"received":%d,'
    b'"discarded_unread":0,"undelivered":0,"outcome":"ended","began_at":%d,"ended_at":%d}'
)


def manifest_of(segment: Path) -> Path:
    return segment.with_name(segment.name.replace(SEALED, ".manifest"))


def cut_off(segment: Path) -> None:
    """Take away its end, and have its manifest describe what is left."""
    raw = segment.read_bytes()[:-100]
    segment.write_bytes(raw)
    said = json.loads(manifest_of(segment).read_bytes())
    said |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    manifest_of(segment).write_text(json.dumps(said))


def _copy(segment: Path, to: Path) -> None:
    """The segment again under another name, as a shipper with a bug would."""
    shutil.copyfile(segment, to)
    said = json.loads(manifest_of(segment).read_bytes()) | {"segment": to.name}
    manifest_of(to).write_text(json.dumps(said))
    read_manifest(manifest_of(to))
