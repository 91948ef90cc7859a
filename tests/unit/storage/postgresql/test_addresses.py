"""A URL of several servers is one URL for each of them."""

import pytest

from brokerd.storage.postgresql.addresses import each_address, shown


@pytest.mark.parametrize(
    ("url", "each"),
    [
        ("postgresql://u:p@a:1/db?ssl=on", ["postgresql://u:p@a:1/db?ssl=on"]),
        (
            "postgresql://u:p%40@a:1,[::1]:2,c/db?ssl=on",
            [
                "postgresql://u:p%40@a:1/db?ssl=on",
                "postgresql://u:p%40@[::1]:2/db?ssl=on",
                "postgresql://u:p%40@c/db?ssl=on",
            ],
        ),
        (
            "postgresql://u@/db?host=/run/a,/run/b&port=5,6",
            [
                "postgresql://u@/db?host=/run/a&port=5",
                "postgresql://u@/db?host=/run/b&port=6",
            ],
        ),
        (
            "postgresql:///db?host=a,b&port=5",
            ["postgresql:///db?host=a&port=5", "postgresql:///db?host=b&port=5"],
        ),
        ("postgresql:///db?host=a,b", ["postgresql:///db?host=a", "postgresql:///db?host=b"]),
        ("postgresql:///db", ["postgresql:///db"]),
        # Left to the driver, which refuses them.
        ("postgresql:///db?host=a,b&port=1,2,3", ["postgresql:///db?host=a,b&port=1,2,3"]),
        ("postgresql://a,b/db?port=5", ["postgresql://a,b/db?port=5"]),
    ],
)
@pytest.mark.rule("REL-53")
def test_each_server_of_a_url_has_one_of_its_own(url, each):
    assert each_address(url) == each


def test_a_server_is_named_without_user_and_password():
    assert shown("postgresql://u:secret@a:1/db") == "a:1"
    assert shown("postgresql://u:secret@/db?host=/run/a&port=5") == "/run/a port 5"
    assert shown("postgresql:///db") == "this machine"
