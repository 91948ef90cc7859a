"""Which groups had most messages, and who held one for long: frames of a few lines."""

import pytest

from spark_jobs import daily
from spark_jobs.held import KEPT as HELD_KEPT
from spark_jobs.held import held
from spark_jobs.hot_groups import KEPT, NOBODY, hot_groups
from tests.spark.segments import NOON, SECOND, interval, mark


def numbered(*lines):
    return [line | {"seq": seq} for seq, line in enumerate(lines)]


def window(queue, groups, within=None, **fields):
    more = {} if within is None else {"groups_within": within}
    return interval(queue=queue, groups=groups, **more, **fields)


@pytest.fixture(scope="module")
def groups(rows):
    """{(instance, queue): {group: messages}}."""
    lines = numbered(
        window("orders", {"hot": 50, "warm": 5}, 2),
        window("orders", {"hot": 40, "cold": 4}, 3),
        window("orders", {"odd": 0, NOBODY: 1}),
        window("orders", {"hot": 1}, instance="east"),
        window("exact", {"a": 7}),
        interval(queue="spread", groups_within=9),
        interval(queue="old"),
        window("many", {f"{n:03}": 100 + n for n in range(50)}),
        interval(scope="pair", queue=None, from_service="a", to_service="b", groups={"x": 1}),
    )
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in hot_groups(rows(*lines)).collect():
        found.setdefault((row.instance, row.name), {})[row.group] = row.messages
    return found


def test_windows_are_merged_by_adding_what_was_counted_and_what_it_may_lack(groups):
    assert groups["west", "orders"] == {"hot": 90, "warm": 5, "cold": 4, NOBODY: 6}
    assert groups["east", "orders"] == {"hot": 1}
    assert groups["west", "exact"] == {"a": 7}


def test_a_queue_of_which_no_group_stands_out_says_how_much_one_may_have(groups):
    assert groups["west", "spread"] == {NOBODY: 9}


def test_lines_of_older_daemons_say_nothing_of_groups(groups):
    assert ("west", "old") not in groups
    assert set(groups) == {("west", n) for n in ("orders", "exact", "spread", "many")} | {
        ("east", "orders")
    }


def test_the_largest_are_kept(groups):
    assert list(groups["west", "many"].values()) == [149 - n for n in range(KEPT)]


def lock(group, since_s, by="client 1", **fields):
    return {
        "group": group,
        "conversation_id": "",
        "by": by,
        "since_at": NOON + since_s * SECOND,
    } | (fields)


def looked(at_s, *locks, **fields):
    return interval(from_at=NOON, at=NOON + at_s * SECOND, held=list(locks), **fields)


@pytest.fixture(scope="module")
def locks(rows):
    lines = numbered(
        looked(10, lock("a", 0), lock("b", 9)),
        looked(30, lock("a", 0, "client 1, latest verb send", conversation_id="c")),
        looked(20, lock("a", 0)),
        looked(90, lock("a", 70, "client 2")),
        looked(50, lock("later", 60), lock(None, 1), {"group": "nothing else"}),
        *(looked(100 + n, lock(f"{n:03}", 99 + n), queue="many") for n in range(60)),
        mark(),
        interval(),
    )
    return {(row.group, row.since_at): row for row in held(rows(*lines)).collect()}


def test_a_lock_is_one_from_the_first_line_that_names_it_to_the_last(locks):
    one = locks["a", NOON]
    assert (one.seen_at, one.by) == (NOON + 30 * SECOND, "client 1, latest verb send")
    assert (one.name, one.conversation_id) == ("orders", "c")
    assert locks["a", NOON + 70 * SECOND].seen_at == NOON + 90 * SECOND


def test_what_cannot_be_is_left_out(locks):
    assert {group for group, _ in locks} & {None, "later", "nothing else"} == set()


def test_the_longest_and_those_seen_last_are_kept(locks):
    """All but three are a second long; of these the last by time, and the first by name."""
    many = {int(group) for group, _ in locks if group.isdigit()}
    assert many >= {*range(60 - HELD_KEPT, 60)}
    assert len(many) < 2 * HELD_KEPT
    assert {("a", NOON), ("a", NOON + 70 * SECOND)} <= set(locks)


@pytest.mark.rule("BI-L2")
def test_tables_look_as_they_are_said_to(rows, spark):
    lines = rows(*numbered(window("orders", {"a": 1}, 1), looked(10, lock("a", 0))))
    for name in (daily.GROUPS, daily.HELD):
        made = daily.TABLES[name](lines)
        said = spark.createDataFrame([], daily.SCHEMAS[name])
        assert dict(made.dtypes) == dict(said.dtypes), name
