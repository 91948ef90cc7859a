"""The same rows give the same bytes of Parquet, footer included."""

import itertools

import pytest

from spark_jobs import footers


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    """A file with columns of several kinds and encodings, as Spark writes it."""
    home = tmp_path_factory.mktemp("footers")
    frame = spark.sql(
        "select id, cast(id % 3 as string) as name, id % 2 = 0 as even, id / 3 as part, "
        "array(named_struct('a', id, 'b', 'x')) as list from range(100)"
    )
    frame.coalesce(1).write.parquet(f"file:{home}/one")
    return next(home.glob("one/part-*"))


def encodings(raw):
    """Where those of each column stand in the footer."""
    footer = footers._Footer(raw[:-8], len(raw) - 8 - int.from_bytes(raw[-8:-4], "little"))
    footer.struct(())
    assert footer._at == len(raw) - 8, "it was walked to its end"
    return footer.sets


@pytest.mark.rule("BI-L5")
def test_however_the_writer_lists_encodings_the_bytes_are_the_same(written, spark, tmp_path):
    raw = written.read_bytes()
    places = encodings(raw)
    assert len(places) == 6, "one a column"
    assert max(map(len, places)) > 2
    wanted = footers.in_order(raw)
    for turn in itertools.permutations(range(3)):
        other = bytearray(raw)
        for column in places:
            if len(column) == len(turn):
                shuffled = b"".join(raw[column[number]] for number in turn)
                other[column[0].start : column[-1].stop] = shuffled
        assert footers.in_order(bytes(other)) == wanted
    (tmp_path / "one.parquet").write_bytes(wanted)
    found = spark.read.parquet(f"file:{tmp_path}/one.parquet").collect()
    assert found == spark.read.parquet(f"file:{written}").collect()


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"PAR1" + b"x" * 40])
def test_what_is_no_parquet_is_refused(raw):
    with pytest.raises(ValueError, match="no Parquet"):
        footers.in_order(raw)
