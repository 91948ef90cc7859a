"""Validation of bodies by the kind and schema of their message type (OBJ-14 to OBJ-19). PURE.

Reads:  a body, and the schema of its type.
Calls:  expat and json; for a schema lxml and jsonschema_rs, the extra `schemas`.
Never:  fetches anything that a body or a schema names, or expands entities. Well-formedness costs
        a fixed number of passes: a body that is nested too deeply is refused before parsing.
        The cost of a check by a schema has no bound, so it runs in a process with limits
        (`checking`).
Fails:  for a body with `Unfit`, which says why and where, or with `GaveUp` if the check ended
        without a verdict; for a schema with `ValueError`, at load.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NoReturn
from xml.parsers import expat

from brokerd.model import MessageType, Validation

MAX_DEPTH: Final = 128
"""Largest depth of nested elements, objects and arrays in a body (OBJ-16)."""
EXTRA: Final = "schemas"
"""Name of the extra with the schema checkers: `pip install brokerd[schemas]`."""

Refused = Callable[[], None]
"""Function called when a body is known to be unfit, before the place of the fault is searched."""
Check = Callable[[bytes, Refused], None]
"""Function that checks a body; raises `Unfit` or `GaveUp`."""

_MOST_SAID: Final = 300
_XSD: Final = "{http://www.w3.org/2001/XMLSchema}"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Pattern of a JSON string, even one without an end; no backtracking, so in linear time."""
_VALUE: Final = re.compile(
    r"(?:((?<=: )|The value|The actual value) ?'.*'(?= (?:is|does|has)\b)|(key-sequence) \[.*\])",
    re.DOTALL,
)
"""Pattern of a value in a message of lxml, with what stands before it."""
_OTHERS: Final = bytes(code for code in range(256) if code not in b"[]{}")
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OBJECT: Final[dict[str, object]] = {}
_UTF16: Final = frozenset({"utf-16", "utf-16le", "utf-16be"})


class Unfit(Exception):
    """A body does not satisfy its message type; the text says why and where."""


class GaveUp(Exception):
    """A check of a body ended without a verdict; the text says why."""


def _keep_quiet() -> None:
    """Ignore that a body is unfit; for callers that do not need the verdict before its reason."""


def problem(kind: MessageType, body: bytes | None, refused: Refused = _keep_quiet) -> str:
    """Return why a body does not satisfy its message type; empty if it does (OBJ-14, OBJ-19).

    An empty body counts as absent (SND-11).

    Raises:
        GaveUp: the check ended without a verdict.
    """
    validation = kind.validation
    if validation is Validation.NONE:
        return ""
    if validation is Validation.EMPTY:
        return "it has no body" if body else ""
    if not body:
        return "it needs a body" if kind.needs_body else ""
    try:
        check_of(validation, kind.schema)(body, refused)
    except Unfit as unfit:
        return str(unfit)[:_MOST_SAID]
    return ""


def is_json(body: bytes | None) -> bool:
    """Return whether a body is a JSON object or list, regardless of its message type.

    Other JSON values do not count: a number or a word may be JSON by chance."""
    try:
        return isinstance(_parse_json(body or b"", keep=False), dict | list)
    except Unfit:
        return False


@lru_cache(maxsize=256)
def check_of(validation: Validation, schema: str | None) -> Check:
    """Return the check for bodies of a structured kind, compiled once.

    Raises:
        ValueError: the schema cannot be used, or its checker is not installed (OBJ-15).
    """
    match validation:
        case Validation.WELL_FORMED_XML:
            return _well_formed_xml
        case Validation.VALID_XML:
            return _valid_xml(schema or "")
        case Validation.WELL_FORMED_JSON:
            return _well_formed_json
        case Validation.VALID_JSON:
            return _valid_json(schema or "")
        case Validation.NONE | Validation.EMPTY:
            raise ValueError(f"a body of kind {validation} is not looked into")


# XML.


class _Xml:
    """One pass of expat over a document, which builds no tree (OBJ-16).

    Without a DOCTYPE, no entities exist but the five of XML itself, and nothing external."""

    def __init__(self) -> None:
        self._depth = 0
        self._declared: str | None = None
        self._parser = parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._down
        parser.EndElementHandler = self._up
        parser.XmlDeclHandler = self._declaration

    def read(self, body: bytes) -> None:
        """Parse a whole document; raise `Unfit` if it is not acceptable."""
        try:
            self._parser.Parse(body, True)
        except expat.ExpatError as error:
            raise Unfit(f"not well-formed XML: {error}") from None
        except (ValueError, LookupError) as error:  # an encoding that expat does not know
            raise Unfit(f"not well-formed XML: {error}") from None
        _check_encoding(body, self._declared)

    def _doctype(self, *_given: object) -> NoReturn:
        raise Unfit(f"it has a DOCTYPE {self._where()}")

    def _down(self, _name: str, _attributes: object) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unfit(f"elements are nested more than {MAX_DEPTH} deep {self._where()}")

    def _up(self, _name: str) -> None:
        self._depth -= 1

    def _declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self._declared = encoding

    def _where(self) -> str:
        parser = self._parser
        return f"(line {parser.CurrentLineNumber}, column {parser.CurrentColumnNumber})"


def _check_encoding(body: bytes, declared: str | None) -> None:
    """Refuse a declared encoding that contradicts the byte order mark; expat checks the rest."""
    if declared is None:
        return
    name = declared.lower()
    marked = "utf-8" if body.startswith(b"\xef\xbb\xbf") else ""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        marked = "utf-16"
    if (marked == "utf-8" and name != "utf-8") or (marked == "utf-16" and name not in _UTF16):
        raise Unfit(f"it declares encoding {declared}, and its byte order mark says {marked}")


def _well_formed_xml(body: bytes, _refused: Refused) -> None:
    _Xml().read(body)


def _valid_xml(text: str) -> Check:
    etree = _import("lxml.etree", "XSD")
    _refuse_reaching_out(text, etree)

    def parser() -> Any:  # noqa: ANN401  # lxml has no types
        return etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
        )

    try:
        schema = etree.XMLSchema(etree.fromstring(text.encode(), parser()))
    except (etree.LxmlError, ValueError) as error:
        raise ValueError(f"the schema cannot be used: {error}") from None

    def check(body: bytes, _refused: Refused) -> None:
        _Xml().read(body)
        try:
            document = etree.fromstring(body, parser())
        except etree.LxmlError as error:
            raise Unfit(f"not well-formed XML: {error}") from None
        try:
            valid = schema.validate(document)
        except etree.LxmlError as error:  # a pattern that the matcher gave up on
            raise GaveUp(str(error)) from None
        if not valid:
            last = schema.error_log.last_error
            raise Unfit(f"not valid: {_masked(last.message)} (line {last.line})")

    return check


def _masked(text: str) -> str:
    """Return a message of the schema checker without the values of the body (SX-10).

    The message goes into logs and to peers. If a value looks like the end of a message, more than
    the value is left out, never less."""
    return _VALUE.sub(lambda found: found[1] or found[2] or "the value", text)


def _refuse_reaching_out(text: str, etree: Any) -> None:  # noqa: ANN401  # lxml has no types
    """Refuse a schema that refers to files or addresses: a schema must be self-contained."""
    try:
        _Xml().read(text.encode())
    except Unfit as unfit:
        raise ValueError(f"the schema cannot be used: {unfit}") from None
    for node in etree.fromstring(text.encode()).iter():
        if node.tag in (f"{_XSD}include", f"{_XSD}redefine", f"{_XSD}import"):
            what = node.tag.removeprefix(_XSD)
            raise ValueError(f"the schema has an xs:{what} (line {node.sourceline}); write it out")


# JSON.


def _well_formed_json(body: bytes, _refused: Refused) -> None:
    _parse_json(body, keep=False)


def _valid_json(text: str) -> Check:
    checker = _import("jsonschema_rs", "JSON Schema")
    try:
        _check_depth(text)  # json.loads would exhaust the stack
        schema = json.loads(text)
    except Unfit as unfit:
        raise ValueError(f"the schema cannot be used: {unfit}") from None
    except ValueError as error:
        raise ValueError(f"the schema is no JSON: {error}") from None
    if isinstance(schema, dict) and str(schema.get("$schema", _DRAFT)).rstrip("#") != _DRAFT:
        raise ValueError(f"the schema is for {schema['$schema']}, and 2020-12 is what is checked")
    try:
        validator = checker.Draft202012Validator(
            schema,
            offline=True,
            mask="the value",  # the text stays short whatever the body holds
            pattern_options=checker.RegexOptions(),  # linear in the body, whatever the pattern
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"the schema cannot be used: {_first_line(error)}") from None

    def check(body: bytes, refused: Refused) -> None:
        value = _parse_json(body)
        try:
            if validator.is_valid(value):
                return
            # The error text lists the errors of every branch of an `anyOf`, and of all branches in
            # them: gigabytes for a recursive schema whose verdict took microseconds. So the
            # verdict is reported first, in case the process runs into its limits.
            refused()
            validator.validate(value)
        except checker.ValidationError as error:
            place = "".join(f"/{part}" for part in error.instance_path)
            raise Unfit(f"not valid: {_first_line(error)} (at {place or '/'})") from None
        except (ValueError, TypeError) as error:  # a text with half of a surrogate pair
            raise Unfit(f"not valid: {_first_line(error)}") from None

    return check


def _parse_json(body: bytes, *, keep: bool = True) -> object:
    """Return the value of a JSON text (OBJ-17): UTF-8, no byte order mark, no NaN, no repeated key,
    bounded depth. Raise `Unfit` for anything else.

    Without `keep`, objects are empty and all numbers are 0: enough to find the outermost type, in a
    fraction of the memory."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unfit(f"not UTF-8: {error.reason} at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise Unfit("not JSON: it begins with a byte order mark")
    _check_depth(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_pairs if keep else _keys,
            parse_constant=_constant,
            parse_int=None if keep else _any_number,
            parse_float=None if keep else _any_number,
        )
    except json.JSONDecodeError as error:
        raise Unfit(f"not JSON: {error}") from None
    except ValueError as error:  # a number with thousands of digits
        raise Unfit(f"not JSON that can be read: {error}") from None


def _check_depth(text: str) -> None:
    """Refuse a text that is nested too deeply; leave missing or wrong brackets to the parser.

    Braces are treated as brackets, so that each pass removes one level, the innermost; brackets
    that do not match are left to the parser. The passes run in C, at about a gigabyte a second."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub("", text).encode("ascii", "ignore").translate(_ALIKE, _OTHERS)
    for _ in range(MAX_DEPTH):
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            break
        brackets = left
    else:
        if brackets:
            raise Unfit(f"values are nested more than {MAX_DEPTH} deep")
    opened = len(brackets) - len(brackets.lstrip(b"["))
    if opened > MAX_DEPTH:
        raise Unfit(f"values are nested more than {MAX_DEPTH} deep")


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        _refuse_twice(pairs)
    return made


def _keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        _refuse_twice(pairs)
    return _OBJECT


def _refuse_twice(pairs: list[tuple[str, object]]) -> NoReturn:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise Unfit(f"not JSON that means one thing: key {key[:60]!r} comes twice")
        seen.add(key)
    raise AssertionError("called where a key comes twice")


def _any_number(_digits: str) -> int:
    return 0


def _constant(word: str) -> NoReturn:
    raise Unfit(f"not JSON: {word} is no value of it")


def _import(module: str, what: str) -> Any:  # noqa: ANN401  # a module
    import importlib  # noqa: PLC0415

    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(
            f"no {what} checker is installed: pip install brokerd[{EXTRA}] (OBJ-15)"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]
