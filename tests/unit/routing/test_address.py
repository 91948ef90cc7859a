"""Addresses: what is accepted, and that two spellings give one key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import InvalidArgument
from brokerd.routing.address import address_in_name, normalise, parse_tcp


@pytest.mark.rule("END-13")
@pytest.mark.rule("END-14")
@pytest.mark.rule("END-15")
@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("TCP://Host.Example:4022", "tcp://host.example:4022"),
        ("tcp://host", "tcp://host:4022"),
        ("Tcp://host:1/", "tcp://host:1"),
        ("tcp://10.0.0.1:65535", "tcp://10.0.0.1:65535"),
        ("TCP://[2001:DB8:0:0::1]:5000", "tcp://[2001:db8::1]:5000"),
        ("tcp://[::1]", "tcp://[::1]:4022"),
        ("tcp://under_score:04022", "tcp://under_score:4022"),
        (f"tcp://{'a.' * 121}bbb", f"tcp://{'a.' * 121}bbb:4022"),
        ("local", "LOCAL"),
        ("Transport", "TRANSPORT"),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalise(text) == normal
    assert normalise(normal) == normal


@pytest.mark.rule("END-13")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:4022",
        "http://host:4022",
        "tcp://",
        "tcp://:4022",
        "tcp://host:",
        "tcp://host:0",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:+1",
        "tcp://host:\uff14022",
        "tcp://host:4022//",
        "tcp://host:4022/path",
        "tcp://ho st",
        "tcp://user@host",
        "tcp://300.1.1.1",
        "tcp://::1",
        "tcp://[::1",
        "tcp://[::1]4022",
        "tcp://[host]:1",
        "tcp://-host",
        "tcp://a..b",
        "LOCAL ",
        "tcp://" + "a" * 64,
        "tcp://" + "a." * 130 + "b",
        "tcp://" + "a." * 122 + "bb",  # with its port it has 257 characters
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        normalise(text)


@pytest.mark.rule("END-2")
def test_port_zero_is_for_listening_only() -> None:
    assert parse_tcp("tcp://host:0", any_port=True).port == 0


@pytest.mark.rule("RTE-62")
@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("TCP://Host:5000/Orders/Checkout", "tcp://host:5000"),
        ("tcp://host", "tcp://host:4022"),
        ("TCP://[::1]/S", "tcp://[::1]:4022"),
        ("Orders/TCP://host", None),
        ("tcp:///S", None),
        ("tcp://host:x/S", None),
    ],
)
def test_address_at_the_start_of_a_service_name(name: str, address: str | None) -> None:
    assert address_in_name(name) == address


@pytest.mark.rule("END-14")
@given(st.text(max_size=40).map(lambda tail: "tcp://" + tail))
def test_any_text_is_refused_or_has_one_normal_form(text: str) -> None:
    try:
        normal = normalise(text)
    except InvalidArgument:
        return
    assert normalise(normal) == normal
    assert normal.isascii()
