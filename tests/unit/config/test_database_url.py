"""URLs of databases: what is refused, and what is shown of them."""

from pathlib import Path

import pytest

from brokerd.config.database_url import problems_of, shown
from brokerd.config.loading import load
from brokerd.errors import ConfigError

pytestmark = pytest.mark.rule("REL-56")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://brokerd@db/brokerd",
        "postgres://brokerd@db:5433/brokerd?sslmode=verify-full&passfile=/etc/brokerd/pass",
        "postgresql://db1,db2/brokerd?target_session_attrs=primary",
        "postgresql:///brokerd?host=/run/postgresql",
        "postgresql://brokerd@/brokerd?host=/a,/b&port=1,2&target_session_attrs=read-write",
    ],
)
def test_a_usable_url_has_no_problem(url: str) -> None:
    assert list(problems_of(url)) == []


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mysql://db/x", "PostgreSQL"),
        ("db/x", "PostgreSQL"),
        ("postgresql://u:secret@db/x", "password"),
        ("postgresql://u@db/x?password=secret", "password"),
        ("postgresql://u@db/x?sslpassword=secret", "password"),
        ("postgresql://u@db", "no database"),
        ("postgresql://db1,db2/x", "several servers"),
        ("postgresql:///x?host=/a,/b", "several servers"),
        ("postgresql://[u:secret@db/x", "cannot be read"),
    ],
)
def test_an_unusable_url_is_refused_and_its_password_not_shown(url: str, word: str) -> None:
    (problem,) = problems_of(url)
    assert word in problem
    assert "secret" not in problem


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql://u:secret@a,b:2/x?sslmode=require", "postgresql://a,b:2/x"),
        ("postgresql://u@/x?host=/run&password=secret", "postgresql:///run/x"),
        ("postgresql://u@a/?dbname=x", "postgresql://a/x"),
        ("postgresql://[u:secret@a/x", "postgresql"),
    ],
)
def test_servers_and_database_are_shown_and_nothing_else(url: str, text: str) -> None:
    assert shown(url) == text


def test_settings_with_a_password_are_refused_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('[store]\nurl = "postgresql://u:secret@db/x"\n')
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    assert "store.url" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_database_and_mirrored_files_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text(
        '[store]\nurl = "postgresql://u@db/x"\n'
        f'[mirroring]\nbrokers = ["m"]\ndirectory = "{tmp_path}/shared"\n'
    )
    with pytest.raises(ConfigError, match=r"mirroring\.brokers"):
        load(file, environ={})
