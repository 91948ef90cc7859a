"""How jobs over few rows are run."""

import threading

import pytest

from spark_jobs.plans import AT_ONCE, interpreted, side_by_side

COMPILED = "spark.sql.codegen.wholeStage"


@pytest.mark.parametrize("when", [True, False])
def test_plans_are_interpreted_within_and_as_before_afterwards(spark, when):
    before = spark.conf.get(COMPILED)
    spark.conf.set(COMPILED, "true")

    def fail():
        with interpreted(spark, when=when):
            assert spark.conf.get(COMPILED) == str(not when).lower()
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert spark.conf.get(COMPILED) == "true"
    finally:
        spark.conf.set(COMPILED, before)


def test_jobs_run_at_the_same_time_and_each_answer_has_its_name():
    together = threading.Barrier(AT_ONCE)  # nobody passes it alone

    def work(name, number):
        together.wait(60)
        return f"{name}{number}"

    names = [f"job{number}" for number in range(2 * AT_ONCE)]
    given = {name: number for number, name in enumerate(names)}
    assert side_by_side(work, given) == {f"job{n}": f"job{n}{n}" for n in range(2 * AT_ONCE)}


def test_a_job_that_fails_is_heard():
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda _, number: 1 // number, {"a": 1, "b": 0, "c": 2})
