"""Headers: which ones a program may send, and which content of a peer is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brokerd
from brokerd.protocol import headers
from brokerd.protocol.headers import Content, find_content_problem, find_problem
from brokerd.protocol.items import HEADERS

NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.binary(max_size=40)
BODIES = st.none() | st.binary(min_size=1, max_size=60)


def packed(value: object) -> bytes:
    block = msgspec.msgpack.encode(value)
    return len(block).to_bytes(2, "big") + block


@pytest.mark.rule("SND-26", "SND-28", "DLP-59")
@given(st.dictionaries(NAMES, VALUES, max_size=20), BODIES)
def test_what_is_joined_is_found_again(given_, body):
    if find_problem(given_):  # drawn with a reserved name
        return
    joined = headers.join(given_, body)
    arrived = headers.content_of(bytes(joined), headers.flags_of(joined))
    for content in (joined, arrived):
        assert headers.headers_of(content) == given_
        assert list(headers.headers_of(content)) == list(given_)
        assert headers.body_of(content) == body
        assert headers.body_of(content) is headers.body_of(content), "verdicts know it by identity"
        assert isinstance(content, Content)
        content.release()
        assert (content.headers, content.body) == (given_, body)
    assert not find_content_problem(arrived)


@pytest.mark.rule("DLP-59")
@pytest.mark.parametrize("content", [None, b"", b"\0\0body"])
def test_content_without_headers_is_the_body_itself(content):
    assert headers.flags_of(content) == 0
    assert headers.body_of(content) is content
    assert headers.headers_of(content) == {}
    if content is not None:
        assert headers.content_of(content, 0) is content


@pytest.mark.rule("RCV-48")
def test_another_body_keeps_the_headers():
    content = headers.join({"a": "b"}, b"old")
    changed = headers.with_body(content, b"new")
    assert headers.headers_of(changed) == {"a": "b"}
    assert headers.body_of(changed) == b"new"
    assert headers.headers_of(headers.with_body(content, None)) == {"a": "b"}
    assert headers.with_body(b"old", b"new") == b"new"


@pytest.mark.rule("SND-26", "BI-12")
@pytest.mark.parametrize(
    "allowed",
    [
        {"a": ""},
        {"a" * 128: b""},
        {"!": "~", "~": "!"},
        {"A": "1", "a": "2"},
        {str(number): "" for number in range(64)},
        {"a": "x" * (8192 - 6)},
        {"ce-id": "\u00e9\u4e2d", "bin": b"\xff\xfe"},
    ],
)
def test_headers_at_their_limits_are_sent(allowed):
    assert find_problem(allowed) == ""
    assert not find_content_problem(headers.join(allowed, None))


@pytest.mark.rule("SND-26", "SND-27", "BI-12")
@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ({"": "x"}, "no name of a header"),
        ({"a" * 129: "x"}, "no name of a header"),
        ({"a b": "x"}, "no name of a header"),
        ({"a\n": "x"}, "no name of a header"),
        ({"\u00e9": "x"}, "no name of a header"),
        ({b"a": "x"}, "no name of a header"),
        ({1: "x"}, "no name of a header"),
        ({"brokerd-id": "x"}, "brokerd-id: names that begin with brokerd-"),
        ({"a": 1}, "a: a text or bytes are expected, not int"),
        ({"a": None}, "a: a text or bytes are expected, not NoneType"),
        ({"a": ["x"]}, "a: a text or bytes are expected, not list"),
        ({"a": "\ud800"}, "UTF-8"),
        ({str(number): "" for number in range(65)}, "65 headers; a message has at most 64"),
        ({"a": "x" * (8192 - 5)}, "8193 bytes of headers; a message has at most 8192"),
    ],
)
def test_other_headers_are_refused_with_the_reason(refused, text):
    assert text in find_problem(refused)


@pytest.mark.rule("DLP-60", "BI-11")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "longer than the message"),
        (b"\0", "longer than the message"),
        (b"\0\2\x80", "longer than the message"),
        (b"\0\0", "no map"),
        (packed(["a", "b"]), "no map"),
        (packed({"a": 1}), "no map"),
        (packed({1: "a"}), "no map"),
        (packed({"a": None}), "no map"),
        (b"\0\4\x81\xa1a\xc1", "no map"),
        (b"\0\5\x81\xa1a\xa1\xff", "no map"),
        (b"\0\6\x81\xa1a\xa1b\xc0", "no map"),
        (b"\0\x09\x82\xa1a\xa1b\xa1a\xa1c", "given twice"),
        (packed({"a b": "c"}), "name is invalid"),
        (packed({"": "c"}), "name is invalid"),
        (packed({str(number): "" for number in range(65)}), "65 headers"),
        (packed({"a": "x" * 8192}), "8198 bytes"),
    ],
)
def test_a_bad_block_of_a_peer_is_found(content, text):
    assert text in find_content_problem(content)
    kept = Content(content)
    assert isinstance(kept.headers, dict), "and what is stored so is readable all the same"
    assert kept.body is None or isinstance(kept.body, bytes)


@pytest.mark.rule("DLP-60")
def test_reserved_names_and_the_empty_map_are_accepted_from_a_peer():
    assert not find_content_problem(packed({"brokerd-later": "x"}))
    assert not find_content_problem(packed({}))


@given(st.binary(max_size=64))
def test_no_content_of_a_peer_breaks_the_check(data):
    problem = find_content_problem(data)
    content = headers.content_of(data, HEADERS)
    assert isinstance(content, Content)
    assert isinstance(problem, str)
    assert type(content.body) in (bytes, type(None))
    if not problem:
        assert headers.join(content.headers, content.body)


@pytest.mark.rule("SDK-22")
def test_well_known_headers_have_names() -> None:
    names = {
        "CONTENT_TYPE": "content-type",
        "CORRELATION_ID": "correlation-id",
        "TRACEPARENT": "traceparent",
        "TRACESTATE": "tracestate",
        "CLOUDEVENTS_PREFIX": "ce-",
    }
    assert {name: getattr(brokerd.headers, name) for name in names} == names
