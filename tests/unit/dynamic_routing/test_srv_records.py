"""SRV records: what they mean, and which addresses are made routes of."""

import pytest

from brokerd.dynamic_routing.srv_records import (
    LEAST_LIFETIME,
    DnsOptions,
    SrvRecords,
    Target,
    Unanswered,
    check_name,
    check_server,
    chosen,
    found,
)
from brokerd.errors import ConfigError, InvalidArgument

NAME = "_far._tcp.example.net"


@pytest.mark.rule("BCN-6")
def test_records_become_addresses_and_what_is_none_is_told() -> None:
    records = [(20, 0, 4023, "b.example.net"), (10, 5, 4022, "A.example.net"), (1, 1, 7, "no way")]
    known = found(NAME, records, ttl=300)
    assert known.targets == (
        Target(10, 5, "tcp://a.example.net:4022"),
        Target(20, 0, "tcp://b.example.net:4023"),
    )
    assert known.lifetime == 300
    assert len(known.unusable) == 1
    assert "no way" in known.unusable[0]
    assert found(NAME, records, ttl=0).lifetime == LEAST_LIFETIME


@pytest.mark.rule("BCN-6")
@pytest.mark.parametrize("record", [(0, 0, 0, "."), (0, 0, 0, "a.example.net"), (0, 0, 9, "a b")])
def test_where_no_record_can_be_used_it_says_so(record: tuple[int, int, int, str]) -> None:
    with pytest.raises(Unanswered, match=NAME):
        found(NAME, [record], ttl=1)


@pytest.mark.rule("BCN-5", "BCN-6")
@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ("", "ab"),
        ("a", "ab"),
        ("ab", "abc"),
        ("abc", "abcd"),
        ("abcd", "abcd"),
        ("cd", "ab"),
    ],
)
def test_the_best_rank_is_used_and_those_behind_it_only_when_all_of_it_have_failed(
    failed: str, expected: str
) -> None:
    targets = [
        Target(20, 1, "d"),
        Target(10, 0, "c"),
        Target(10, 9, "a"),
        Target(10, 1, "b"),
        Target(10, 1, "a"),
    ]
    assert sorted(chosen(targets, set(failed))) == list(expected)
    assert chosen([Target(1, 0, "a"), Target(1, 0, "b")], ()) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "_a..b", "_" + "a" * 63 + ".b", "_a b.c", "a.b", "_ä.b"])
def test_a_name_that_dns_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name(name)
    check_name(NAME + ".")


def test_a_name_server_is_an_address_perhaps_with_a_port() -> None:
    assert check_server("127.0.0.1") == ("127.0.0.1", 53)
    assert check_server("127.0.0.1:5353") == ("127.0.0.1", 5353)
    assert check_server("::1") == ("::1", 53)
    assert check_server("[::1]:5353") == ("::1", 5353)
    for wrong in ("", "localhost", "127.0.0.1:x", "1.2.3", "127.0.0.1:0", "127.0.0.1:65536"):
        with pytest.raises(InvalidArgument):
            check_server(wrong)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dns.asyncresolver", None)
    with pytest.raises(ConfigError) as error:
        SrvRecords(DnsOptions())
    assert "brokerd[dns]" in error.value.hint
