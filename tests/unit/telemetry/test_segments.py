"""Sealed segments and their manifests; what happens at midnight; copies of the event log."""

import gzip
import hashlib
import json
from datetime import timedelta
from pathlib import Path

import pytest

from brokerd.telemetry import segments
from brokerd.telemetry.metrics_log import MAX_EVENTS, MetricsLog
from brokerd.telemetry.segments import manifests, read_manifest
from tests.unit.telemetry.test_metrics import (
    BOOT,
    DAY,
    DIALOG,
    LATER_BOOT,
    QUEUE_ROW,
    HandClock,
    make,
)


def only_manifest(directory: Path) -> Path:
    (path,) = manifests(directory)
    return path


def sealed_one(directory: Path) -> Path:
    log = make(directory, HandClock())
    log.write_interval([QUEUE_ROW, QUEUE_ROW])
    log.write_dialogs([DIALOG])
    log.seal()
    return only_manifest(directory)


def test_a_manifest_says_what_is_in_its_segment(tmp_path: Path) -> None:
    manifest = read_manifest(sealed_one(tmp_path))
    packed = (tmp_path / DAY / manifest.segment).read_bytes()
    lines = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
    assert manifest.segment == f"east-{'ab' * 16}-0000000000.jsonl.gz"
    assert (manifest.instance, manifest.boot_id, manifest.day) == ("east", BOOT.hex(), DAY)
    assert (manifest.first_seq, manifest.last_seq) == (lines[0]["seq"], lines[-1]["seq"]) == (0, 2)
    assert (manifest.first_at, manifest.last_at) == (lines[0]["at"], lines[-1]["at"])
    assert manifest.lines == {"interval": 2, "dialog": 1}
    assert manifest.bytes == len(packed)
    assert manifest.sha256 == hashlib.sha256(packed).hexdigest()


def test_a_manifest_that_is_not_of_the_file_beside_it_is_refused(tmp_path: Path) -> None:
    path = sealed_one(tmp_path)
    with pytest.raises(ValueError, match="is the manifest of"):
        read_manifest(path.rename(path.with_name("other.manifest")))


@pytest.mark.parametrize("step", ["segment", "manifest", "removal"])
def test_a_crash_while_sealing_is_mended_by_the_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (tmp_path / "whole").mkdir()
    expected = {
        path.name: path.read_bytes() for path in sealed_one(tmp_path / "whole").parent.glob("*")
    }
    log = make(tmp_path / "cut", HandClock())
    log.write_interval([QUEUE_ROW, QUEUE_ROW])
    log.write_dialogs([DIALOG])
    real_replace, real_unlink = Path.replace, Path.unlink
    renames = 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == {"segment": 1, "manifest": 2}.get(step):
            raise OSError("cut off")
        return real_replace(path, target)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if step == "removal":
            raise OSError("cut off")
        real_unlink(path, missing_ok)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    log.seal()
    assert len(list((tmp_path / "cut").glob("*.open"))) == 1
    monkeypatch.undo()
    after = MetricsLog(
        directory=tmp_path / "cut", instance="east", boot_id=LATER_BOOT, clock=HandClock()
    )
    assert after.start() == 1
    day = tmp_path / "cut" / DAY
    assert {path.name: path.read_bytes() for path in day.glob("[!.]*")} == expected
    assert not list((tmp_path / "cut").glob("*.open"))


def test_another_day_begins_another_segment(tmp_path: Path) -> None:
    clock = HandClock()
    log = make(tmp_path, clock, segment_age=timedelta(days=1))
    log.write_interval([QUEUE_ROW])
    clock.now = 2 * 3600.0
    log.write_interval([QUEUE_ROW])
    log.write_interval([QUEUE_ROW])
    log.seal()
    found = [read_manifest(path) for path in manifests(tmp_path)]
    assert [(one.day, one.lines["interval"]) for one in found] == [(DAY, 2), ("2023-11-15", 1)]


@pytest.mark.parametrize("is_open", [True, False])
def test_what_closes_a_day_belongs_to_it(tmp_path: Path, is_open: bool) -> None:
    clock = HandClock()
    log = make(tmp_path, clock)
    if is_open:
        log.write_interval([QUEUE_ROW])
    clock.now = 2 * 3600.0
    log.close_day(DAY)
    log.write_dialogs([DIALOG])
    log.seal()
    log.write_interval([QUEUE_ROW])
    log.seal()
    found = [read_manifest(path) for path in manifests(tmp_path)]
    assert [(one.day, one.lines.get("dialog", 0)) for one in found] == [(DAY, 1), ("2023-11-15", 0)]


def test_of_very_many_open_dialogs_no_segment_becomes_much_larger_than_it_may(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    log = make(tmp_path, clock, segment_size=64 * 1024)
    clock.now = 2 * 3600.0
    log.close_day(DAY)
    for _ in range(20):
        log.write_dialogs([DIALOG] * 1000)
    assert all(path.stat().st_size < 1024 * 1024 for path in tmp_path.glob(f"*{segments.OPEN}"))
    log.write_dialogs([DIALOG])
    log.flush()
    clock.now += 120
    log.write_interval([QUEUE_ROW])  # in between: seals what is old, and does not end the day
    log.write_dialogs([DIALOG])
    log.seal()
    found = [read_manifest(path) for path in manifests(tmp_path)]
    assert {one.day for one in found} == {DAY}
    assert sum(one.lines.get("dialog", 0) for one in found) == 20_002
    assert len(found) > 10


def test_lines_of_the_event_log_are_copied_as_text(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    fields = {"event": "broker.activation", "subclass": "aborted", "broker": "main", "reader": 7}
    log.write_event("warning", {**fields, "client": b"\x01\xff", "nothing": None})
    log.seal()
    packed = only_manifest(tmp_path).with_suffix(segments.SEALED)
    line = json.loads(gzip.decompress(packed.read_bytes()))
    assert (line["kind"], line["event"], line["subclass"]) == (
        "event",
        "broker.activation",
        "aborted",
    )
    assert (line["severity"], line["broker"]) == ("warning", "main")
    assert line["fields"] == {"reader": "7", "client": "01ff"}


def test_a_storm_of_events_is_cut_off_and_counted_until_the_next_interval(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    for _ in range(MAX_EVENTS + 3):
        log.write_event("warning", {"event": "x"})
    assert log.dropped == 3
    log.write_interval([])
    log.write_event("warning", {"event": "x"})
    assert log.dropped == 3
