"""`brokerd explain`: the meaning of a finding, a setting, an error or a reason (MON-83).

Reads:  the tables from which the reference pages are made.      Calls: nothing.
Never:  asks a daemon, or shows an id of a rule, which users do not know.
"""

import importlib
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

import click
import msgspec

from brokerd import errors
from brokerd.admin.doctor.codes import CODES
from brokerd.cli.object_keys import KEYS
from brokerd.cli.options import json_option
from brokerd.cli.output import print_json, print_line, print_rows, terminal_width
from brokerd.config.loading import meanings, sections
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import FOUND_BY_BROKERS, RESEND_HELPS, BrokerError, ObjectNotFound
from brokerd.process.exit_statuses import ROWS
from brokerd.routing.reasons import MEANING, SSB_CODES, Reason
from brokerd.rule_ids import without_rules

_PACKAGES_WITH_ERRORS: Final = ("activation", "bench", "demo", "process", "reports")
"""Packages, beside the module `errors`, that define errors of their own."""
_WIDTH: Final = 100
_IF_IT_LASTS: Final = (
    "If it lasts, `brokerd doctor` names the cause and the commands that help; `brokerd dialog "
    "status HANDLE` shows since when, and the next attempt."
)
"""The cure of a reason why messages wait, which depends on the routes and the other side."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be explained."""

    kind: str
    """`finding`, `setting`, `key`, `error`, `reason` or `exit status`."""
    code: str
    meaning: str
    cure: str = ""
    also: tuple[str, ...] = ()
    """Other names: the class of an error, a number."""


@click.command(
    name="explain",
    context_settings={"ignore_unknown_options": True},  # -8408 is a code
)
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@json_option
def command(*, codes: tuple[str, ...], as_json: bool) -> None:
    """Explain a code: of a finding, a setting, an error, a status of a message, an exit status.

    CODE is what a command or a program has printed: D45, clients.listen, queue_disabled,
    QueueDisabled, peer_queue_full, -8408, 78. Without CODE, list all of them.
    """
    known = entries()
    if not codes:
        if as_json:
            print_rows(known)
        else:
            _list(known)
        return
    found = [one for code in codes for one in find(code, known)]
    if as_json:
        print_json([msgspec.to_builtins(one) for one in found])
        return
    for number, one in enumerate(found):
        if number:
            print_line()
        _show(one)


def find(code: str, known: list[Entry]) -> list[Entry]:
    """Return the entries of a code, in any case.

    Raises:
        ObjectNotFound: there is none; the message names the nearest code.
    """
    wanted = code.strip().casefold()
    if wanted.removeprefix("-").isdigit():  # programs print them with a minus, brokers without
        wanted = wanted.removeprefix("-")
    found = [one for one in known if wanted in (name.casefold() for name in _names(one))]
    if found:
        return found
    below = [one for one in known if one.code.casefold().startswith(f"{wanted}.")]
    if below:  # a section of the settings
        return below
    near = did_you_mean(code, (name for one in known for name in _names(one)))
    raise ObjectNotFound(
        f"nothing is called {code!r}{near}", hint="brokerd explain lists all codes"
    )


def _names(one: Entry) -> Iterable[str]:
    return (one.code, *one.also)


def entries() -> list[Entry]:
    """Return everything that can be explained, by kind."""
    return [*_findings(), *_reasons(), *_errors(), *_found_by_brokers(), *_settings(), *_statuses()]


def _findings() -> Iterator[Entry]:
    for code, one in CODES.items():
        yield Entry(kind="finding", code=code, meaning=one.meaning, cure=one.cure)


def _reasons() -> Iterator[Entry]:
    for key, meaning in MEANING.items():
        number = SSB_CODES.get(key)
        also = () if number is None else (str(number),)
        cure = _IF_IT_LASTS if isinstance(key, Reason) else ""
        yield Entry(kind="reason", code=str(key), meaning=_sentence(meaning), cure=cure, also=also)


def _errors() -> Iterator[Entry]:
    for kind in every_error():
        if "code" not in vars(kind):
            continue
        meaning = _sentence((kind.__doc__ or "").partition("\n")[0])
        retry = " The same request may succeed later." if kind.retryable else ""
        number = () if kind.ssb_code is None else (str(kind.ssb_code),)
        yield Entry(
            kind="error",
            code=kind.code,
            meaning=meaning + retry,
            cure=_sentence(kind.hint),
            also=(kind.__name__, *number),
        )


def every_error() -> list[type[BrokerError]]:
    """Return all error classes of brokerd, those of `errors.py` first."""
    import brokerd  # noqa: PLC0415  # its path, for the modules that define errors

    for name in _PACKAGES_WITH_ERRORS:
        path = [f"{place}/{name}" for place in brokerd.__path__]
        for module in pkgutil.iter_modules(path, f"brokerd.{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: list[type[BrokerError]] = list(dict.fromkeys([BrokerError, *_below(BrokerError)]))
    own = [one for one in found if one.__module__ == errors.__name__]
    return own + [one for one in found if one not in own and one.__module__.startswith("brokerd.")]


def _below(kind: type[BrokerError]) -> Iterator[type[BrokerError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _found_by_brokers() -> Iterator[Entry]:
    for number, (code, hint) in FOUND_BY_BROKERS.items():
        again = " The same messages may arrive on a new dialog." if number in RESEND_HELPS else ""
        meaning = f"A broker ended the dialog with error {number}.{again}"
        known = getattr(errors, "".join(part.title() for part in code.split("_")), None)
        if isinstance(known, type) and known.__doc__:
            meaning = f"{_sentence(known.__doc__.partition(chr(10))[0])} {meaning}"
        yield Entry(
            kind="error of a broker",
            code=str(number),
            meaning=meaning,
            cure=_sentence(hint),
            also=(code, str(-number)),
        )


def _settings() -> Iterator[Entry]:
    meaning = meanings()
    for section, kind in sections().items():
        summary = without_rules(" ".join((kind.__doc__ or "").split()))
        yield Entry(kind="section of the settings", code=section, meaning=summary)
    for name, text in meaning.items():
        yield Entry(kind="setting", code=name, meaning=without_rules(text))
    for noun, keys in KEYS.items():
        for key in keys:
            default = f" If it is left out: {key.default}." if key.default else ""
            name = f"{noun.replace('_', '-')}.{key.name}"
            text = _sentence(key.meaning) + default
            yield Entry(kind=f"key of a {noun.replace('_', ' ')}", code=name, meaning=text)


def _statuses() -> Iterator[Entry]:
    for row in ROWS:
        text = _sentence(row.short)
        if row.codes:
            text += f" Errors that lead to it: {', '.join(row.codes)}."
        yield Entry(kind="exit status", code=str(int(row.status)), meaning=text)


def _sentence(text: str) -> str:
    text = without_rules(text).strip()
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _show(one: Entry) -> None:
    also = f" (also {', '.join(one.also)})" if one.also else ""
    print_line(f"{one.code}: {one.kind}{also}")
    width = min(_WIDTH, terminal_width()) - 2
    for text in (one.meaning, one.cure):
        for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False):
            print_line(f"  {line}")


def _list(known: list[Entry]) -> None:
    kind = ""
    for one in known:
        if one.kind != kind:
            kind = one.kind
            print_line(f"{kind}:")
        room = _WIDTH - len(one.code) - 4
        print_line(f"  {one.code}  {textwrap.shorten(one.meaning, room, placeholder=' ...')}")
