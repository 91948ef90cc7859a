"""A request for a route is a message, so whoever may send to the service writes its body."""

import pytest

from brokerd.dynamic_routing.route_service import parse_request

LAUGHS = "".join(f'<!ENTITY l{at + 1} "{f"&l{at};" * 10}">' for at in range(9))


@pytest.mark.rule("BCN-15")
def test_a_request_is_read_in_either_form() -> None:
    for body in (
        b"<MissingRoute><SERVICE_NAME>urn:x</SERVICE_NAME></MissingRoute>",
        b'{"service_name": "urn:x"}',
    ):
        assert parse_request(body)[0] == "urn:x"


@pytest.mark.rule("SX-13")
@pytest.mark.parametrize(
    "body",
    [
        f'<!DOCTYPE a [<!ENTITY l0 "ha">{LAUGHS}]><a><b>&l9;</b></a>'.encode(),
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a><b>&x;</b></a>',
        b"<a>" * 100_000 + b"</a>" * 100_000,
        b"{" + b'"a":{' * 100_000,
        b"",
        b"\xff\xfe",
    ],
    ids=["laughs", "file", "deep XML", "deep JSON", "nothing", "a mark alone"],
)
def test_a_hostile_request_is_refused_in_few_words(body: bytes) -> None:
    with pytest.raises((ValueError, SyntaxError)) as refused:
        parse_request(body)
    assert len(str(refused.value)) < 1000
    assert "root:" not in str(refused.value)
