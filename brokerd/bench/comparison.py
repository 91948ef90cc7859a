"""`brokerd bench compare`: two saved results side by side. PURE but for reading the two files.

Reads: results saved by `--save`.      Calls: nothing.
Never: compares results of different benchmarks, or hides that their settings differ.
"""

from pathlib import Path

import msgspec

from brokerd.errors import Refusal


class NotComparable(Refusal):
    """Two results cannot be compared."""

    code = "not_comparable"


class ResultUnreadable(Refusal):
    """A file with a result cannot be read."""

    code = "result_unreadable"
    hint = "name two files, written with --save by brokerd bench"


class Figure(msgspec.Struct, frozen=True):
    """One figure of both results; None = a result does not have it."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None
    """The value after, divided by the value before; None = either is missing, or before is 0."""


class Comparison(msgspec.Struct, frozen=True):
    """Two results of one benchmark."""

    benchmark: str
    settings: dict[str, tuple[object, object]]
    """Settings that differ, each with the values of both results."""
    figures: list[Figure]


def read(path: Path) -> dict[str, object]:
    """Return a saved result; raise `NotComparable` or `ResultUnreadable`."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise ResultUnreadable(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise NotComparable(
            f"{path} is no result of a benchmark: {error}", hint="brokerd bench local --save FILE"
        ) from None
    if not isinstance(result.get("benchmark"), str) or not isinstance(result.get("settings"), dict):
        raise NotComparable(
            f"{path} is no result of a benchmark", hint="brokerd bench local --save FILE"
        )
    return result


def compare(before: dict[str, object], after: dict[str, object]) -> Comparison:
    """Return all figures in the order of the first result, then those only in the second result."""
    if before["benchmark"] != after["benchmark"]:
        raise NotComparable(
            f"the first is of bench {before['benchmark']}, "
            f"the second of bench {after['benchmark']}",
            hint="name two results of one benchmark",
        )
    old, new = _figures(before), _figures(after)
    return Comparison(
        benchmark=str(before["benchmark"]),
        settings=_different(_settings(before), _settings(after)),
        figures=[_figure(name, old.get(name), new.get(name)) for name in (old | new)],
    )


def _figure(name: str, before: float | None, after: float | None) -> Figure:
    ratio = round(after / before, 3) if before and after is not None else None
    return Figure(name, before, after, ratio)


def _settings(result: dict[str, object]) -> dict[str, object]:
    return msgspec.convert(result["settings"], dict[str, object])


def _different(
    before: dict[str, object], after: dict[str, object]
) -> dict[str, tuple[object, object]]:
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name) and name != "load_average"
    }


def _figures(value: object, name: str = "") -> dict[str, float]:
    """Return every number in a part of a result, by its path."""
    if isinstance(value, bool):
        return {}
    if isinstance(value, int | float):
        return {name: value}
    if not isinstance(value, dict):
        return {}
    found: dict[str, float] = {}
    for key, one in value.items():
        if name or key != "settings":
            found |= _figures(one, f"{name}.{key}" if name else str(key))
    return found
