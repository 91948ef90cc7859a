"""Values as people write and read them: `15s`, `200ms`, `64KiB`, `2 groups`. PURE.

Reads:  text or numbers.        Calls: nothing.
Fails:  with `ValueError`; `config` and `objects` add the place in the file.
"""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
_WRITTEN = re.compile(r"\s*(-?\d[\d_]*(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_MAX_SECONDS = 2**31 - 1


def parse_duration(value: object) -> timedelta:
    """Parse a duration: text with a unit (us, ms, s, min, h, d), or a number of seconds.

    Raises:
        ValueError: `value` is neither, or longer than 2147483647 seconds; the text says why.
    """
    if isinstance(value, str):
        number, unit = _split(value, _SECONDS, example='"15s", "200ms" or "30min"')
        seconds = number * _SECONDS[unit]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError(f'{value!r} is neither text such as "15s" nor a number of seconds')  # noqa: TRY004
    if not math.isfinite(seconds) or abs(seconds) > _MAX_SECONDS:
        raise ValueError(f"{value!r} is beyond {_MAX_SECONDS} seconds")
    return timedelta(microseconds=round(seconds * 1_000_000))


def parse_size(value: object) -> int:
    """Parse a size in bytes: text with a unit (B, KiB, MiB, GiB, kB, MB ...), or a number of bytes.

    Raises:
        ValueError: `value` is neither, or not a whole number of bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is neither text such as "64KiB" nor a number of bytes')  # noqa: TRY004
    number, unit = _split(value, _BYTES, example='"64KiB" or "4MiB"')
    size = number * _BYTES[unit]
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size)


def show_duration(value: timedelta) -> str:
    """Return the duration in the largest unit that keeps it whole, for `parse_duration`."""
    micros = value // timedelta(microseconds=1)
    for unit, seconds in reversed(_SECONDS.items()):
        step = round(seconds * 1_000_000)
        if micros % step == 0 and micros:
            return f"{micros // step}{unit}"
    return "0s"


def show_size(value: int) -> str:
    """Return the size in the largest binary unit that keeps it whole."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


def _split(text: str, units: Mapping[str, float], *, example: str) -> tuple[float, str]:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form {example}")
    number, unit = found.groups()
    if not unit:
        raise ValueError(f"{text!r} lacks its unit; write {example}")
    for known in units:
        if known == unit or known.casefold() == unit.casefold():
            return float(number.replace("_", "")), known
    raise ValueError(f"{unit!r} is no unit here; use one of {', '.join(units)}")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: 1 group, 2 groups. `plural`: for a noun without -s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def printable(text: str) -> str:
    """Return the text with every unprintable character written as an escape (SX-14).

    Unprintable are control characters, the ends of lines, and all that shows nothing by itself,
    such as the characters of Unicode that turn the direction of the text around them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_json(encoded: bytes) -> bytes:
    """Return JSON with every unprintable character written as an escape of JSON (SX-14).

    The values stay the same. Encoders escape only the control characters below 0x20; the ends of
    lines between values stay."""
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    text = encoded.decode("utf-8", "surrogatepass")
    return "".join(c if c == "\n" or c.isprintable() else _json_escape(c) for c in text).encode()


def _json_escape(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pairs[at : at + 4]}" for at in range(0, len(pairs), 4))
