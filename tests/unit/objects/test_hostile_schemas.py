"""Schemas made to hurt whoever compiles them, and bodies made to hurt whoever reads them."""

import json
import socket
from pathlib import Path

import pytest

from brokerd.model import MessageType, Validation
from brokerd.objects.validation import MAX_DEPTH, GaveUp, check_of, problem

XSD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{before}'
    '<xs:element name="n" type="{kind}"/></xs:schema>'
)
LAUGHS = "".join(f'<!ENTITY l{at + 1} "{f"&l{at};" * 10}">' for at in range(9))
FAN = {f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 10} for at in range(12)}

pytestmark = pytest.mark.rule("SX-13", "BI-R5")


def doctype(inside: str, body: str) -> str:
    return f"<?xml version='1.0'?><!DOCTYPE n [{inside}]>{body}"


@pytest.mark.parametrize(
    ("kind", "schema", "why"),
    [
        (
            Validation.VALID_XML,
            doctype(f'<!ENTITY l0 "ha">{LAUGHS}', XSD.format(before="", kind="&l9;")),
            "DOCTYPE",
        ),
        (
            Validation.VALID_XML,
            doctype('<!ENTITY x SYSTEM "file:///etc/passwd">', XSD.format(before="", kind="&x;")),
            "DOCTYPE",
        ),
        (
            Validation.VALID_XML,
            XSD.format(before="<xs:annotation>" * 10_000 + "</xs:annotation>" * 10_000, kind="x"),
            "nested",
        ),
        (Validation.VALID_JSON, '{"not":' * 20_000 + "{}" + "}" * 20_000, "nested"),
        (Validation.VALID_JSON, '{"not":' * (MAX_DEPTH + 1) + "{}" + "}" * 200, "nested"),
        (Validation.VALID_JSON, '{"maximum": ' + "9" * 100_000 + "}", "digits"),
        (Validation.VALID_JSON, '{"maximum": NaN}', "cannot be used"),
        (Validation.VALID_JSON, '{"pattern": "((a{1,100}){1,100}){1,100}"}', "regex"),
        (Validation.VALID_JSON, '{"$ref": "file:///etc/passwd"}', "cannot be used"),
    ],
    ids=[
        "billion laughs",
        "external entity",
        "deep XSD",
        "deep JSON",
        "a level too deep",
        "huge number",
        "NaN",
        "exploding pattern",
        "a file",
    ],
)
def test_a_hostile_schema_is_refused_when_it_is_loaded(
    kind: Validation, schema: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        check_of(kind, schema)
    assert len(str(refused.value)) < 1000
    assert "root:" not in str(refused.value)


def test_nothing_that_a_schema_names_is_fetched(tmp_path: Path) -> None:
    """The address is one at which something listens, so a fetch would be seen."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        where = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        for kind, schema in (
            (Validation.VALID_JSON, json.dumps({"$ref": where})),
            (Validation.VALID_JSON, json.dumps({"$schema": where})),
            (
                Validation.VALID_XML,
                XSD.format(
                    before=f'<xs:import namespace="u:x" schemaLocation="{where}"/>', kind="x"
                ),
            ),
        ):
            with pytest.raises(ValueError, match="schema"):
                check_of(kind, schema)
        body = (
            f'<n xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
            f'xsi:schemaLocation="u:x {where}" xsi:noNamespaceSchemaLocation="{where}">1</n>'
        )
        checked = MessageType("t", Validation.VALID_XML, XSD.format(before="", kind="xs:int"))
        assert isinstance(problem(checked, body.encode()), str)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ({"$ref": "#"}, b"1"),
        ({"$defs": {**FAN, "a12": {}}, "$ref": "#/$defs/a0"}, b"1"),
        ({"pattern": "^(a|aa)+$"}, b'"' + b"a" * 5000 + b'c"'),
        ({"multipleOf": 1e-300}, b"1e300"),
        ({"uniqueItems": True}, json.dumps(list(range(20_000))).encode()),
    ],
    ids=["names itself", "fans out", "pattern", "division", "unique"],
)
def test_a_schema_that_is_accepted_has_a_verdict(schema: object, body: bytes) -> None:
    """Without backtracking or endless recursion; what still takes long ends with its process."""
    assert isinstance(
        problem(MessageType("t", Validation.VALID_JSON, json.dumps(schema)), body), str
    )


@pytest.mark.parametrize("kind", [Validation.WELL_FORMED_XML, Validation.VALID_XML])
@pytest.mark.parametrize(
    "body",
    [
        doctype(f'<!ENTITY l0 "ha">{LAUGHS}', "<n>&l9;</n>"),
        doctype('<!ENTITY x SYSTEM "file:///etc/passwd">', "<n>&x;</n>"),
        doctype('<!ENTITY % p SYSTEM "http://127.0.0.1:9/x"> %p;', "<n/>"),
        "<!DOCTYPE n SYSTEM 'http://127.0.0.1:9/x'><n/>",
        "<n>" * 100_000 + "</n>" * 100_000,
        "<n>&undefined;</n>",
    ],
    ids=["laughs", "file", "parameter", "external subset", "deep", "undefined"],
)
def test_a_hostile_body_is_unfit_and_expands_nothing(kind: Validation, body: str) -> None:
    schema = XSD.format(before="", kind="xs:string") if kind.has_schema else None
    try:
        said = problem(MessageType("t", kind, schema), body.encode())
    except GaveUp as gave_up:
        said = str(gave_up)
    assert said
    assert "root:" not in said
    assert len(said) <= 300


SECRET = "hunter2"
TYPED = (
    '<xs:element name="n" type="xs:int"/>',
    '<xs:element name="n" type="xs:string" fixed="x"/>',
    '<xs:element name="n"><xs:complexType><xs:simpleContent><xs:extension base="xs:string">'
    '<xs:attribute name="a" type="xs:date"/></xs:extension></xs:simpleContent></xs:complexType>'
    "</xs:element>",
    '<xs:element name="n"><xs:complexType><xs:sequence><xs:element name="k" maxOccurs="9"/>'
    '</xs:sequence></xs:complexType><xs:unique name="u"><xs:selector xpath="k"/>'
    '<xs:field xpath="."/></xs:unique></xs:element>',
    *(
        f'<xs:element name="n"><xs:simpleType><xs:restriction base="{base}">{facet}'
        "</xs:restriction></xs:simpleType></xs:element>"
        for base, facet in (
            ("xs:string", '<xs:pattern value="[0-9]+"/>'),
            ("xs:string", '<xs:enumeration value="a"/>'),
            ("xs:string", '<xs:maxLength value="3"/>'),
            ("xs:decimal", '<xs:maxInclusive value="3"/>'),
            ("xs:decimal", '<xs:totalDigits value="1"/>'),
        )
    ),
)


@pytest.mark.rule("SX-10", "SX-9")
@pytest.mark.parametrize("declared", TYPED)
@pytest.mark.parametrize(
    "body",
    [
        f"<n>{SECRET}</n>",
        f"<n>{SECRET}' is not a valid value '{SECRET}</n>",
        f"<n a='{SECRET}'>x</n>",
        f"<n><k>{SECRET}</k><k>{SECRET}</k></n>",
        f"<n>{int.from_bytes(SECRET.encode(), 'big')}</n>",
    ],
)
def test_a_verdict_names_the_place_and_never_the_value(declared: str, body: str) -> None:
    schema = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{declared}</xs:schema>'
    said = problem(MessageType("t", Validation.VALID_XML, schema), body.encode())
    assert SECRET not in said
    assert str(int.from_bytes(SECRET.encode(), "big")) not in said
    assert not said or said.startswith("not valid: Element ")


@pytest.mark.rule("SX-10")
@pytest.mark.parametrize("schema", [{"type": "integer"}, {"enum": ["a"]}, {"pattern": "^a$"}])
def test_so_does_one_of_json(schema: object) -> None:
    checked = MessageType("t", Validation.VALID_JSON, json.dumps(schema))
    said = problem(checked, json.dumps(SECRET).encode())
    assert said
    assert SECRET not in said
