"""Tokens of T-SQL: nothing is lost, nothing fails, and no text takes long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.tsql.tokens import Kind, Lines, tokenize

PIECES = st.sampled_from(
    ["'", "''", "N'", '"', "[", "]", "]]", "/*", "*/", "--", "\n", "\r", "\r\nGO\r\n", "GO", " ",
     "go 5", "@x", "@@y", "$(Z)", ":setvar a b", "!!dir", ".", ";", "(", ")", "1.5e3", "0xAB", "é"]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join))


def kinds(text: str) -> list[tuple[Kind, str]]:
    return [(one.kind, one.text) for one in tokenize(text) if one.kind is not Kind.SPACE]


@pytest.mark.rule("IMP-1", "IMP-2")
@given(TEXTS)
def test_the_tokens_joined_are_the_text(text: str) -> None:
    tokens = list(tokenize(text))
    assert "".join(one.text for one in tokens) == text
    assert all(one.text for one in tokens)
    assert [one.at for one in tokens] == [
        sum(len(before.text) for before in tokens[:number]) for number in range(len(tokens))
    ]


@pytest.mark.rule("IMP-3")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/* a /* b */ c */x", [(Kind.COMMENT, "/* a /* b */ c */"), (Kind.WORD, "x")]),
        ("/* a */ x */", [(Kind.COMMENT, "/* a */"), (Kind.WORD, "x"), (Kind.SYMBOL, "*"),
                          (Kind.SYMBOL, "/")]),
        ("/* open GO\nGO\nx", [(Kind.COMMENT, "/* open GO\nGO\nx")]),
        ("-- 'a\nx", [(Kind.COMMENT, "-- 'a"), (Kind.WORD, "x")]),
        ("N'it''s' x", [(Kind.STRING, "N'it''s'"), (Kind.WORD, "x")]),
        ("[a]]b].[c]", [(Kind.QUOTED, "[a]]b]"), (Kind.SYMBOL, "."), (Kind.QUOTED, "[c]")]),
        ('"a""b"', [(Kind.QUOTED, '"a""b"')]),
        ("@h @@ROWCOUNT #t", [(Kind.VARIABLE, "@h"), (Kind.VARIABLE, "@@ROWCOUNT"),
                              (Kind.WORD, "#t")]),
        ("$(Name)", [(Kind.MACRO, "$(Name)")]),
    ],
)  # fmt: skip
def test_tokens(text: str, found: list[tuple[Kind, str]]) -> None:
    assert kinds(text) == found


@pytest.mark.rule("IMP-7")
def test_the_value_of_a_name_or_string_is_without_quotes() -> None:
    values = [one.value for one in tokenize("[a]]b]'it''s'\"x\"\"y\"n'z'[open") if one.text]
    assert values == ["a]b", "it's", 'x"y', "z", "open"]


@pytest.mark.rule("IMP-6")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("GO", 1),
        ("x\nGO\ny\n  go 5 -- five times\n", 2),
        ("x\r\nGO\r\n", 1),
        ("GO;", 1),
        ("/*\nGO\n*/", 0),
        ("'\nGO\n'", 0),
        ("x GO", 0),
        ("GOTO done", 0),
        ("GO home", 0),
    ],
)
def test_a_line_with_go_alone_ends_a_batch(text: str, count: int) -> None:
    assert sum(one.kind is Kind.GO for one in tokenize(text)) == count


@pytest.mark.rule("IMP-6")
@pytest.mark.parametrize("opening", ["'", "N'", "[", '"'])
def test_a_quote_that_is_never_closed_ends_before_the_next_batch(opening: str) -> None:
    found = list(tokenize(f"a {opening}open\nb\n GO\nc"))
    assert [(one.kind, one.text) for one in found[-3:]] == [
        (Kind.GO, "GO"), (Kind.SPACE, "\n"), (Kind.WORD, "c"),
    ]  # fmt: skip
    assert not found[2].is_closed


@pytest.mark.rule("IMP-2")
@pytest.mark.parametrize("piece", ["[\nGO\n", "'\nGO\n", "/*\nGO\n", "[", "/*", "''", " ", "GO "])
def test_no_text_is_read_again_and_again(piece: str) -> None:
    """Each character belongs to one token, however the pieces of a text are left open."""
    text = piece * (100_000 // len(piece))
    assert sum(len(one.text) for one in tokenize(text)) == len(text)


@pytest.mark.rule("IMP-2")
def test_an_open_bracket_is_sought_an_end_for_once() -> None:
    """If each of the brackets looked through the comment for its end, that would take minutes."""
    text = "[\nGO\n" * 20_000 + "/*" + "x" * 20_000_000
    assert sum(len(one.text) for one in tokenize(text)) == len(text)


@given(TEXTS, st.integers(min_value=0))
def test_a_place_is_line_and_column(text: str, at: int) -> None:
    at %= len(text) + 1
    line, column = Lines(text).place(at)
    before = text[:at].replace("\r\n", "\n ").replace("\r", "\n")
    assert line >= 1
    assert column >= 1
    if "\r" not in text:
        assert (line, column) == (before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)
