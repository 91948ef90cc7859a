"""Validation of bodies: what each kind of message type asks of one (OBJ-14 to OBJ-19). PURE.

Reads:  a body, and the schema of its type.
Calls:  expat and json; lxml and jsonschema_rs, the extra `schemas`, where a type has a schema.
Never:  fetches anything a body or a schema names, expands entities, or lets hostile bytes cost
        more than one pass over them: whatever is nested too deeply is refused before it is built.
Fails:  a body with `Unfit`, which says why and where; a schema with `ValueError`, at load.
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
"""Levels of elements, objects and arrays that a body may nest (OBJ-16)."""
EXTRA: Final = "schemas"
"""What to install for schema checkers: `pip install brokerd[schemas]`."""

Check = Callable[[bytes], None]
"""Looks into a body; raises `Unfit`."""

_MOST_SAID: Final = 300
_XSD: Final = "{http://www.w3.org/2001/XMLSchema}"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A text, also one that never ends, or a bracket; it never looks back, so it is linear."""
_UTF16: Final = frozenset({"utf-16", "utf-16le", "utf-16be"})


class Unfit(Exception):
    """A body is not what its message type asks for; the text says why and where."""


def problem(kind: MessageType, body: bytes | None) -> str:
    """Why a body is not what the type asks for; nothing if it is (OBJ-14, OBJ-19).

    A body of no bytes is an absent one (SND-11)."""
    validation = kind.validation
    if validation is Validation.NONE:
        return ""
    if validation is Validation.EMPTY:
        return "it has no body" if body else ""
    if not body:
        return "it needs a body" if kind.needs_body else ""
    try:
        check_of(validation, kind.schema)(body)
    except Unfit as unfit:
        return str(unfit)[:_MOST_SAID]
    return ""


@lru_cache(maxsize=1024)
def is_json(body: bytes | None) -> bool:
    """Whether it is a JSON object or list, whatever its message type asks for.

    A number or a word may be JSON by chance."""
    try:
        return isinstance(_parse_json(body or b"", number=_as_it_is), dict | list)
    except Unfit:
        return False


def check_of(validation: Validation, schema: str | None) -> Check:
    """What looks into bodies of a structured kind, made once.

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
    """One pass of expat over a document, building nothing (OBJ-16).

    Without a DOCTYPE there are no entities but the five of XML itself, and nothing external."""

    def __init__(self) -> None:
        self._depth = 0
        self._declared: str | None = None
        self._parser = parser = expat.ParserCreate()
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._down
        parser.EndElementHandler = self._up
        parser.XmlDeclHandler = self._declaration

    def read(self, body: bytes) -> None:
        """Read a whole document."""
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
    """Refuse a declared encoding that the mark at the beginning contradicts; expat sees others."""
    if declared is None:
        return
    name = declared.lower()
    marked = "utf-8" if body.startswith(b"\xef\xbb\xbf") else ""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        marked = "utf-16"
    if (marked == "utf-8" and name != "utf-8") or (marked == "utf-16" and name not in _UTF16):
        raise Unfit(f"it declares encoding {declared}, and its byte order mark says {marked}")


def _well_formed_xml(body: bytes) -> None:
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
    except etree.LxmlError as error:
        raise ValueError(f"the schema cannot be used: {error}") from None

    def check(body: bytes) -> None:
        _well_formed_xml(body)
        try:
            document = etree.fromstring(body, parser())
        except etree.LxmlError as error:
            raise Unfit(f"not well-formed XML: {error}") from None
        if not schema.validate(document):
            last = schema.error_log.last_error
            raise Unfit(f"not valid: {last.message} (line {last.line})")

    return check


def _refuse_reaching_out(text: str, etree: Any) -> None:  # noqa: ANN401  # lxml has no types
    """A schema is one text: it is not completed by files or addresses that it names."""
    try:
        _well_formed_xml(text.encode())
    except Unfit as unfit:
        raise ValueError(f"the schema cannot be used: {unfit}") from None
    for node in etree.fromstring(text.encode()).iter():
        if node.tag in (f"{_XSD}include", f"{_XSD}redefine", f"{_XSD}import"):
            what = node.tag.removeprefix(_XSD)
            raise ValueError(f"the schema has an xs:{what} (line {node.sourceline}); write it out")


# JSON.


def _well_formed_json(body: bytes) -> None:
    _parse_json(body, number=_as_it_is)


def _valid_json(text: str) -> Check:
    checker = _import("jsonschema_rs", "JSON Schema")
    try:
        schema = json.loads(text)
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

    def check(body: bytes) -> None:
        value = _parse_json(body)
        try:
            validator.validate(value)
        except checker.ValidationError as error:
            place = "".join(f"/{part}" for part in error.instance_path)
            raise Unfit(f"not valid: {_first_line(error)} (at {place or '/'})") from None
        except (ValueError, TypeError) as error:  # a text with half of a surrogate pair
            raise Unfit(f"not valid: {_first_line(error)}") from None

    return check


def _parse_json(body: bytes, number: Callable[[str], Any] | None = None) -> object:
    """The value of a JSON text (OBJ-17): UTF-8, no mark, no NaN, no key twice, bounded depth."""
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
            object_pairs_hook=_pairs,
            parse_constant=_constant,
            parse_int=number,
            parse_float=number,
        )
    except json.JSONDecodeError as error:
        raise Unfit(f"not JSON: {error}") from None
    except ValueError as error:  # a number of thousands of digits
        raise Unfit(f"not JSON that can be read: {error}") from None


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise Unfit(f"values are nested more than {MAX_DEPTH} deep (char {token.start()})")
        elif token[0] in "]}":
            depth -= 1


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Unfit(f"not JSON that means one thing: key {key[:60]!r} comes twice")
            seen.add(key)
    return made


def _as_it_is(digits: str) -> str:
    return digits


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
