"""Message types and bodies whose checks are long, dear, or given up."""

import json

from brokerd.model import MessageType, Validation

MIB = 1024 * 1024


def recursive() -> str:
    """A schema whose error lists those of two branches at each level of a body."""
    branch = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
    node = {"anyOf": [branch, {**branch, "minProperties": 1}, {"type": "integer"}]}
    return json.dumps({"$defs": {"n": node}, "$ref": "#/$defs/n"})


def pattern(text: str) -> str:
    return (
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="a">'
        f'<xs:simpleType><xs:restriction base="xs:string"><xs:pattern value="{text}"/>'
        "</xs:restriction></xs:simpleType></xs:element></xs:schema>"
    )


JSON = MessageType("Json", Validation.WELL_FORMED_JSON)


ANY_OF = MessageType("AnyOf", Validation.VALID_JSON, recursive())


PATTERN = MessageType("Pattern", Validation.VALID_XML, pattern("(a|aa)+b"))


SMALL_AND_DEAR = ANY_OF, b'{"a":' * 51 + b'"xxxxxx"' + b"}" * 51


LARGE = JSON, b"[" + b"[]," * MIB + b"1]"


GIVES_UP = PATTERN, b"<a>" + b"a" * 5000 + b"c</a>"
