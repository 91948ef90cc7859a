"""Conservation: balances the two sides of every dialog to find losses (REL-31, design D16).

Reads:  dialog lines, one per (boot_id, seq).
Never:  calls a message lost because one side's log is absent or older than the other side's, or
        because the clocks of two instances differ by less than `SKEW_US`.

A dialog has two directions. For each, with the counts of the sending and the receiving side,

    sent + ahead + doubled = received + undelivered + waiting + later + unaccounted

| column | counts messages that |
|---|---|
| `undelivered` | the sender withdrew when the dialog ended, and the receiver does not have |
| `waiting` | an open sender holds unacknowledged, and the receiver does not have |
| `later` | an open receiver may have stored since its line, which is older than the sender's |
| `ahead` | an open sender has sent since its line, which is older than the receiver's |
| `unaccounted` | were acknowledged or given up, but not received: lost until explained |
| `doubled` | were received in excess of those sent |
| `elsewhere` | cannot be balanced: the other side is not in these logs |
"""

from collections.abc import Sequence
from datetime import date as calendar
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.dates import DAY_US
from spark_jobs.read import NO_DATE

FINDING_LOST = "lost"
FINDING_DOUBLED = "doubled"
FINDING_ELSEWHERE = "other side not in these logs"
FINDINGS = (FINDING_LOST, FINDING_DOUBLED, FINDING_ELSEWHERE)
"""Findings, the gravest first."""

SKEW_US = 120_000_000
"""Maximum difference, in microseconds, between two instances' clocks, and between a line and the
state that it describes."""

NIGHT_US = 600_000_000
"""Length, in microseconds, of the end of a day: a dialog with only one side in it is balanced with
the next day."""

LOOK_BACK_DAYS = 30
"""Days for which one side of a dialog may have been closed when the other closes: as far back as a
report reads (`report.collect.HISTORY_DAYS`)."""

_COUNTS = (
    "sent",
    "received",
    "discarded_unread",
    "undelivered",
    "waiting",
    "later",
    "ahead",
    "unaccounted",
    "doubled",
    "elsewhere",
)
_PAIR = ("from_service", "to_service", "contract")
_ONE = ("conversation_id", "from_initiator", "sender_at", "receiver_at", "began_at")
"""Columns that identify a direction, even of a dialog of a service with itself."""
_OF_DAY = "is_of_day"
_SIDE = (
    "instance",
    "service",
    "far_service",
    "contract",
    "sent",
    "acknowledged",
    "received",
    "discarded_unread",
    "undelivered",
    "outcome",
    "began_at",
    "ended_at",
)


def dialogs(lines: DataFrame) -> DataFrame:
    """Return one row per conversation: structs `initiator` and `target`, null for a missing side.

    Of lines from `of_days`, leave out a dialog with both sides but no line of the day itself: it
    was in the books of the day before.
    """
    closed = (F.col("state") == "closed").alias("closed")
    said = F.struct(closed, "at", "boot_id", "seq", *_SIDE)
    is_of_day = F.col(_OF_DAY) if _OF_DAY in lines.columns else F.lit(True)
    found = (
        lines.where(F.col("kind") == "dialog")
        .groupBy("conversation_id", "date")  # the more selective column first, for the sort
        .agg(
            F.max(F.when(F.col("is_initiator"), said)).alias("initiator"),
            F.max(F.when(~F.col("is_initiator"), said)).alias("target"),
            F.max(is_of_day).alias(_OF_DAY),
        )
    )
    is_half = F.col("initiator").isNull() | F.col("target").isNull()
    return found.where(F.col(_OF_DAY) | is_half).drop(_OF_DAY)


def directions(conversations: DataFrame) -> DataFrame:
    """Return a balanced row for each direction of a conversation that carried messages."""
    initiator, target = F.col("initiator"), F.col("target")
    first = F.lit(True).alias("from_initiator")
    second = F.lit(False).alias("from_initiator")
    apart, renamed = _apart(initiator, target), _renamed(initiator, target)
    there = F.struct(
        *(first, initiator.alias("sender"), target.alias("receiver")),
        *(apart.alias("apart"), renamed.alias("renamed")),
    )
    back = F.struct(
        *(second, target.alias("sender"), initiator.alias("receiver")),
        *(apart.alias("apart"), F.lit(None).cast("string").alias("renamed")),
    )
    way = F.explode(F.array(there, back)).alias("way")
    both = conversations.select("date", "conversation_id", way)
    return _balanced(both.select("date", "conversation_id", "way.*"))


def _apart(initiator: Column, target: Column) -> Column:
    """Return by how much the clocks of the two instances differ at least, and which is ahead.

    A target begins after its initiator, and before the initiator has ended a dialog of which the
    target acknowledged something (BI-L19). If it seems otherwise, one clock is ahead of the other.
    """
    early = initiator["began_at"] - target["began_at"]
    late = F.when(
        initiator["closed"] & (initiator["acknowledged"] > 0),
        target["began_at"] - F.coalesce(initiator["ended_at"], initiator["at"]),
    )
    here, there = initiator["instance"], target["instance"]
    is_early = early >= F.coalesce(late, early)
    most = F.when(here != there, F.greatest(early, late))
    return F.when(
        most > 0,
        F.struct(
            most.alias("most_us"),
            F.when(is_early, here).otherwise(there).alias("ahead"),
            F.when(is_early, there).otherwise(here).alias("behind"),
        ),
    )


def _renamed(initiator: Column, target: Column) -> Column:
    """Return the names of a service where the two sides of a dialog name it differently (BI-L20).

    Null: the sides agree, or one of them is not in these logs.
    """
    here, there = initiator, target
    of_target = (here["far_service"], here["instance"], there["service"], there["instance"])
    of_initiator = (here["service"], here["instance"], there["far_service"], there["instance"])
    form = "%s at %s is %s at %s"
    return F.when(here["far_service"] != there["service"], F.format_string(form, *of_target)).when(
        here["service"] != there["far_service"], F.format_string(form, *of_initiator)
    )


def of_days(lines: DataFrame, dates: Sequence[str], halves: DataFrame | None = None) -> DataFrame:
    """Return the dialog lines of the books of these days, with `date` set to that of the books.

    `lines` are those of the days and of `LOOK_BACK_DAYS` before them. A day has the dialogs with a
    line on it, and those with only one side in the night before it. A dialog with one side gets its
    older lines too, for the counts of a side that closed earlier. `halves` are the rows of
    `one_sided`, if the caller has them.
    """
    if halves is None:
        halves = one_sided(lines, dates)
    own = _spoken(lines, dates).withColumn(_OF_DAY, F.col("date") == F.col("day"))
    halves = halves.select(F.col("conversation_id").alias("of"), "day")
    old = F.datediff(F.to_date("day"), F.to_date("date"))
    near = (F.col("conversation_id") == F.col("of")) & old.between(1, LOOK_BACK_DAYS)
    earlier = lines.where(F.col("date") < max(dates)).join(halves, near).drop("of")
    both = own.unionByName(earlier.withColumn(_OF_DAY, F.lit(False)))
    return both.drop("date").withColumnRenamed("day", "date")


def one_sided(lines: DataFrame, dates: Sequence[str]) -> DataFrame:
    """Return `day` and `conversation_id` of dialogs with one side in the day and night before."""
    sides = (
        _spoken(lines, dates)
        .groupBy("day", "conversation_id")
        .agg(
            F.bool_or("is_initiator").alias("has_initiator"),
            F.bool_and("is_initiator").alias("has_no_target"),
        )
    )
    is_half = ~F.col("has_initiator") | F.col("has_no_target")
    return sides.where(is_half).select("day", "conversation_id")


def _spoken(lines: DataFrame, dates: Sequence[str]) -> DataFrame:
    """Return the lines of each of these days and of the night before it, with their `day`."""
    following = F.date_format(F.date_add(F.to_date("date"), 1), "yyyy-MM-dd")
    ends = F.unix_micros(F.to_timestamp("date")) + F.lit(DAY_US - NIGHT_US) <= F.col("at")
    days = F.when(ends, F.array("date", following)).otherwise(F.array("date"))
    read = sorted({*dates, *map(_day_before, dates)})
    near = lines.where(F.col("date").isin(read))
    return near.withColumn("day", F.explode(days)).where(F.col("day").isin(list(dates)))


def _day_before(date: str) -> str:
    return (calendar.fromisoformat(date) - timedelta(1)).isoformat()


def books(balanced: DataFrame) -> DataFrame:
    """Return the sums of the directions that balance, and each of the others in a row of its own.

    The sums are few rows, however many the dialogs; `pairs` and `findings` are built from both.
    """
    finding = (
        F.when(F.col("unaccounted") > 0, FINDING_LOST)
        .when(F.col("doubled") > 0, FINDING_DOUBLED)
        .when(F.col("elsewhere") > 0, FINDING_ELSEWHERE)
    )
    found = balanced.withColumn("finding", finding)
    named = [F.when(F.col("finding").isNotNull(), F.col(name)).alias(name) for name in _ONE]
    return found.groupBy("date", *_PAIR, "outcome", "finding", *named).agg(
        F.count(F.lit(1)).alias("dialogs"),
        F.sum(F.col("open").cast("long")).alias("open"),
        F.sum("acknowledged").alias("acknowledged"),
        *(F.sum(name).alias(name) for name in _COUNTS),
        F.max("apart").alias("apart"),
        F.max("renamed").alias("renamed"),
        F.count("renamed").alias("renamed_dialogs"),
    )


def sides(booked: DataFrame) -> DataFrame:
    """Return what the two sides of dialogs contradict each other in, per service pair.

    `most_us`: the least difference of two instances' clocks that explains the times of a dialog, at
    its largest. `ahead`: the instance whose clock is ahead of that of the instance `behind`.
    `renamed`: the sides' names of one dialog whose sides name a service differently, and
    `renamed_dialogs` the number of such dialogs.
    """
    return (
        booked.groupBy("date", *_PAIR)
        .agg(
            F.max("apart").alias("apart"),
            F.max("renamed").alias("renamed"),
            F.sum("renamed_dialogs").alias("renamed_dialogs"),
        )
        .where((F.col("apart.most_us") > 0) | F.col("renamed").isNotNull())
        .select("date", *_PAIR, "apart.*", "renamed", "renamed_dialogs")
    )


def pairs(booked: DataFrame) -> DataFrame:
    """Sum the books per service pair and contract, and split `undelivered` by outcome."""
    names = ("dialogs", "open", *_COUNTS)
    sums = [F.sum(name).alias(name) for name in names]
    by_outcome = booked.groupBy("date", *_PAIR, "outcome").agg(*sums)
    reason = F.when(F.col("undelivered") > 0, F.struct("outcome", "undelivered"))
    return by_outcome.groupBy("date", *_PAIR).agg(
        *sums, F.sort_array(F.collect_list(reason)).alias("undelivered_by")
    )


def findings(booked: DataFrame) -> DataFrame:
    """Return a row for each direction that is lost, doubled, or has its other side elsewhere."""
    found = booked.where(F.col("finding").isNotNull())
    amount = F.greatest("unaccounted", "doubled", "elsewhere").alias("messages")
    shown = ("sent", "acknowledged", "received", "undelivered", "waiting", "outcome", "began_at")
    return found.select(
        "date", "finding", amount, "conversation_id", *_PAIR, "sender_at", "receiver_at", *shown
    )


def _balanced(ways: DataFrame) -> DataFrame:
    has_sender = F.col("sender").isNotNull()
    has_receiver = F.col("receiver").isNotNull()
    open_sender = has_sender & ~F.col("sender.closed")
    skew = F.when(F.col("date") == NO_DATE, 0).otherwise(SKEW_US)  # a run shares a clock
    older_receiver = ~F.col("receiver.closed") & (F.col("receiver.at") < F.col("sender.at") + skew)
    older_sender = open_sender & (F.col("sender.at") < F.col("receiver.at") + skew)

    named = ways.select(
        "date",
        "conversation_id",
        "from_initiator",
        "apart",
        "renamed",
        F.greatest("sender.at", "receiver.at").alias("at"),
        F.coalesce("sender.service", "receiver.far_service").alias("from_service"),
        F.coalesce("sender.far_service", "receiver.service").alias("to_service"),
        F.coalesce("sender.contract", "receiver.contract", F.lit("")).alias("contract"),
        F.coalesce("sender.instance", F.lit("")).alias("sender_at"),
        F.coalesce("receiver.instance", F.lit("")).alias("receiver_at"),
        F.coalesce("sender.outcome", F.lit("unknown")).alias("outcome"),
        F.coalesce("sender.began_at", "receiver.began_at").alias("began_at"),
        has_sender.alias("has_sender"),
        has_receiver.alias("has_receiver"),
        open_sender.alias("open"),
        F.coalesce(older_receiver, F.lit(False)).alias("older_receiver"),
        F.coalesce(older_sender, F.lit(False)).alias("older_sender"),
        _count("sender.sent", "sent"),
        _count("sender.acknowledged", "acknowledged"),
        _count("sender.undelivered", "withdrawn"),
        _count("receiver.received", "received"),
        _count("receiver.discarded_unread", "discarded_unread"),
    ).where((F.col("sent") > 0) | (F.col("received") > 0))

    absent = F.greatest(F.col("sent") - F.col("received"), F.lit(0))
    extra = F.greatest(F.col("received") - F.col("sent"), F.lit(0))
    unacknowledged = F.greatest(F.col("sent") - F.col("acknowledged"), F.lit(0))
    explained = (
        named.withColumn("undelivered", F.least("withdrawn", absent))
        .withColumn("rest", absent - F.col("undelivered"))
        .withColumn("waiting", _where(F.col("open"), F.least("rest", unacknowledged)))
        .withColumn("rest", F.col("rest") - F.col("waiting"))
    )
    both = F.col("has_sender") & F.col("has_receiver")
    # A dialog with one side at the end of a day is in the next day's books as well, with the other
    # side's lines (`of_days`): until then a missing receiver's messages count as `later`.
    tonight = ~both & (
        F.col("at") >= F.unix_micros(F.try_to_timestamp("date")) + F.lit(DAY_US - NIGHT_US)
    )
    tonight = F.coalesce(tonight, F.lit(False))
    later = (both & F.col("older_receiver")) | (tonight & F.col("has_sender"))
    return (
        explained.withColumn("later", _where(later, F.col("rest")))
        .withColumn("unaccounted", _where(both & ~F.col("older_receiver"), F.col("rest")))
        .withColumn("ahead", _where(both & F.col("older_sender"), extra))
        .withColumn("doubled", _where(both & ~F.col("older_sender"), extra))
        .withColumn("elsewhere", _where(~both, F.col("rest") + extra - F.col("later")))
        .withColumn("elsewhere", _where(~tonight, F.col("elsewhere")))
        .drop("has_sender", "has_receiver", "older_receiver", "older_sender", "withdrawn", "rest")
        .drop("at")
    )


def _count(path: str, name: str) -> Column:
    return F.coalesce(path, F.lit(0)).alias(name)


def _where(condition: Column, amount: Column) -> Column:
    return F.when(condition, amount).otherwise(F.lit(0))
