"""What each kind of message type asks of a body, and hostile bodies that do no harm."""

import sys

import pytest

from brokerd.model import MessageType, Validation
from brokerd.objects.validation import MAX_DEPTH, check_of, problem

XSD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
    '<xs:element name="n" type="xs:int"/></xs:schema>'
)
JSON_SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
BOMB = b'<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
OUTSIDE = b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>'

XML = MessageType("t", Validation.WELL_FORMED_XML)
VALID_XML = MessageType("t", Validation.VALID_XML, schema=XSD)
JSON = MessageType("t", Validation.WELL_FORMED_JSON)
VALID_JSON = MessageType("t", Validation.VALID_JSON, schema=JSON_SCHEMA)


@pytest.mark.rule("OBJ-14")
def test_none_takes_anything_and_empty_only_an_absent_body() -> None:
    anything, empty = MessageType("t"), MessageType("t", Validation.EMPTY)
    for body in (None, b"", b"\xff\x00", b"<a"):
        assert problem(anything, body) == ""
    assert problem(empty, None) == ""
    assert problem(empty, b"x") == "it has no body"


@pytest.mark.rule("OBJ-15", "RCV-29")
def test_six_kinds_and_their_letters() -> None:
    assert [(kind.value, kind.code) for kind in Validation] == [
        ("none", "N"),
        ("empty", "E"),
        ("well_formed_xml", "X"),
        ("valid_xml", "X"),
        ("well_formed_json", "J"),
        ("valid_json", "J"),
    ]


@pytest.mark.rule("OBJ-15", "OBJ-16", "OBJ-17")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (XML, b"<a b='c'>d<e/></a>"),
        (XML, '<?xml version="1.0" encoding="iso-8859-1"?><a>\u00e9</a>'.encode("iso-8859-1")),
        (XML, '<?xml version="1.0" encoding="utf-16"?><a>\u00e9</a>'.encode("utf-16-le")),
        (XML, b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><a/>"),
        (XML, b"\xef\xbb\xbf<a/>"),
        (XML, "<a>\u00e9</a>".encode("utf-16")),
        (XML, b"<a>" * MAX_DEPTH + b"</a>" * MAX_DEPTH),
        (VALID_XML, b"<n>7</n>"),
        (JSON, b'{"a": [1, 2.5, null, true, "\\u00e9"]}'),
        (JSON, b"7"),
        (JSON, b"9" * 5000),
        (JSON, b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
        (JSON, b'"' + b"[" * 10 * MAX_DEPTH + b'"'),
        (JSON, b'{"a":[' * (MAX_DEPTH // 2) + b"]}" * (MAX_DEPTH // 2)),
        (JSON, b"[" + b'[{"a":{}},[]],' * 1000 + b"7]"),
        (VALID_JSON, b'{"n": 7, "more": {}}'),
    ],
)
def test_bodies_that_fit(kind: MessageType, body: bytes) -> None:
    assert problem(kind, body) == ""


@pytest.mark.rule("OBJ-16", "BI-R5")
@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (XML, b"<a>", "not well-formed XML: no element found: line 1, column 3"),
        (XML, b"plain", "not well-formed XML"),
        (XML, BOMB, "DOCTYPE"),
        (XML, OUTSIDE, "DOCTYPE"),
        (VALID_XML, BOMB, "DOCTYPE"),
        (XML, b"<a>&c;</a>", "undefined entity"),
        (XML, b"<a>" * 129 + b"</a>" * 129, "more than 128 deep"),
        (XML, b"<a>" * 100_000, f"more than {MAX_DEPTH} deep"),
        (XML, b'<?xml version="1.0" encoding="utf-16"?><a/>', "encoding"),
        (XML, '<?xml version="1.0" encoding="utf-8"?><a/>'.encode("utf-16"), "encoding"),
        (
            XML,
            '\ufeff<?xml version="1.0" encoding="utf-16be"?><a/>'.encode("utf-16-le"),
            "encoding",
        ),
        (XML, b'\xef\xbb\xbf<?xml version="1.0" encoding="iso-8859-1"?><a/>', "byte order mark"),
        (XML, b'<?xml version="1.0" encoding="big5"?><a/>', "encodings are not supported"),
        (XML, b'<?xml version="1.0" encoding="none-such"?><a/>', "unknown encoding"),
        (XML, b"<a>\xe9</a>", "invalid token"),
        (VALID_XML, b"<n>many</n>", "not valid: Element 'n'"),
        (VALID_XML, b"<m/>", "not valid"),
    ],
)
def test_xml_that_does_not_fit(kind: MessageType, body: bytes, why: str) -> None:
    assert why in problem(kind, body)


@pytest.mark.rule("OBJ-17", "BI-R5")
@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (JSON, b'{"a": }', "line 1 column 7"),
        (JSON, b"\xef\xbb\xbf{}", "byte order mark"),
        (JSON, "{}".encode("utf-16"), "not UTF-8"),
        (JSON, b'"\xe9"', "not UTF-8"),
        (JSON, b"[NaN]", "NaN"),
        (JSON, b"[Infinity]", "Infinity"),
        (JSON, b"[-Infinity]", "-Infinity"),
        (VALID_JSON, b'{"n": NaN}', "NaN"),
        (JSON, b'{"a": 1, "a": 2}', "key 'a' comes twice"),
        (JSON, b'{"a": 1, "\\u0061": 2}', "key 'a' comes twice"),
        (JSON, b'[{"b": {"a": 1, "a": 1}}]', "key 'a' comes twice"),
        (JSON, b"[" * 1_000_000, f"more than {MAX_DEPTH} deep"),
        (JSON, b'{"a":' * 1000, f"more than {MAX_DEPTH} deep"),
        (JSON, b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
        (JSON, b'{"a":' * MAX_DEPTH + b"[]" + b"}" * MAX_DEPTH, f"more than {MAX_DEPTH} deep"),
        (JSON, b"[" + b'{"a":[' * 64 + b"]}" * 64 + b"]", f"more than {MAX_DEPTH} deep"),
        (JSON, b'[{"a":[]},' + b'[{"a":' * 65 + b"7" + b"}]" * 65 + b"]", "deep"),
        (JSON, b'{"a":[' * MAX_DEPTH + b"]}" * MAX_DEPTH, f"more than {MAX_DEPTH} deep"),
        (JSON, b'{"a": [}]' + b"[]" * MAX_DEPTH, "line 1 column 8"),
        (JSON, b"[" * 200 + b'"' + b'\\"' * 500_000, f"more than {MAX_DEPTH} deep"),
        (JSON, b'"' + b'\\"' * 500_000 + b"[" * 200, "Unterminated string"),
        (VALID_JSON, b'{"n": "x"}', "(at /n)"),
        (VALID_JSON, b"{}", '"n" is a required property'),
        (VALID_JSON, b'{"n": 1, "n": 2}', "comes twice"),
        (VALID_JSON, b'{"n": "\\ud800"}', "not valid"),
        (VALID_JSON, b'{"n": ' + b"9" * 5000 + b"}", "not JSON that can be read"),
    ],
)
def test_json_that_does_not_fit(kind: MessageType, body: bytes, why: str) -> None:
    assert why in problem(kind, body)


@pytest.mark.rule("OBJ-19")
@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (XML, True),
        (VALID_XML, False),
        (JSON, False),
        (VALID_JSON, False),
        (MessageType("t", Validation.WELL_FORMED_XML, require_body=True), False),
        (MessageType("t", Validation.WELL_FORMED_JSON, require_body=False), True),
    ],
)
def test_an_absent_body_fits_where_none_is_required(kind: MessageType, fits: bool) -> None:
    for body in (None, b""):
        assert (problem(kind, body) == "") == fits


@pytest.mark.rule("OBJ-15")
@pytest.mark.parametrize(
    ("kind", "schema", "why"),
    [
        (Validation.VALID_JSON, "{", "no JSON"),
        (Validation.VALID_JSON, '{"type": "nope"}', "cannot be used"),
        (Validation.VALID_JSON, '{"$ref": "#/$defs/none"}', "cannot be used"),
        (Validation.VALID_JSON, '{"$ref": "http://127.0.0.1:1/x"}', "cannot be used"),
        (Validation.VALID_JSON, '{"$ref": "file:///etc/hostname"}', "cannot be used"),
        (Validation.VALID_JSON, '{"$schema": "http://json-schema.org/schema#"}', "2020-12"),
        (Validation.VALID_JSON, '{"$schema": 7}', "2020-12"),
        (Validation.VALID_XML, "<a", "not well-formed"),
        (Validation.VALID_XML, "<a/>", "cannot be used"),
        (Validation.VALID_XML, XSD.replace("xs:int", "xs:none"), "cannot be used"),
        (Validation.VALID_XML, BOMB.decode(), "DOCTYPE"),
        (
            Validation.VALID_XML,
            XSD.replace("<xs:element", '<xs:include schemaLocation="x.xsd"/><xs:element'),
            "xs:include",
        ),
        (
            Validation.VALID_XML,
            XSD.replace("<xs:element", '<xs:redefine schemaLocation="x.xsd"/><xs:element'),
            "xs:redefine",
        ),
        (
            Validation.VALID_XML,
            XSD.replace("<xs:element", '<xs:import namespace="urn:x"/><xs:element'),
            "xs:import",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_found_when_it_is_loaded(
    kind: Validation, schema: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        check_of(kind, schema)


@pytest.mark.rule("OBJ-16")
def test_a_document_cannot_name_another_schema() -> None:
    body = (
        b'<n xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        b' xsi:noNamespaceSchemaLocation="http://127.0.0.1:1/x.xsd">x</n>'
    )
    assert "not a valid value" in problem(VALID_XML, body)


@pytest.mark.rule("OBJ-15")
@pytest.mark.parametrize(
    ("module", "kind", "schema"),
    [
        ("lxml.etree", Validation.VALID_XML, XSD + " "),
        ("jsonschema_rs", Validation.VALID_JSON, JSON_SCHEMA + " "),
    ],
)
def test_a_schema_without_its_checker_installed_is_refused_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, module: str, kind: Validation, schema: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=r"pip install brokerd\[schemas\]"):
        check_of(kind, schema)
