"""An Airflow DAG for the morning report: one run a day, back-fill by Airflow itself.

    cp deploy/airflow_dag.py $AIRFLOW_HOME/dags/brokerd_report.py

`brokerd` of the workers must be that of an environment with the extra `batch`. A run is for the
day that its data interval covers; it may be repeated, which changes nothing where nothing came
late. Only one runs at a time, for they share one lake.
"""

from datetime import UTC, datetime, timedelta

from airflow.timetables.interval import CronDataIntervalTimetable

try:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG
except ImportError:  # Airflow 2
    from airflow import DAG
    from airflow.operators.bash import BashOperator

LANDING = "/srv/brokerd/landing"
REPORTS = "/srv/brokerd/reports"

# Status 1 asks for a look and does not fail the task; 2 does.
COMMAND = f"""
brokerd report run --landing {LANDING} --date {{{{ data_interval_start | ds }}}} --output {REPORTS}
status=$?; [ $status -eq 1 ] && exit 0; exit $status
"""

with DAG(
    dag_id="brokerd_report",
    # A run covers the day before; of a plain cron text Airflow 3 would make the day that begins.
    schedule=CronDataIntervalTimetable("20 0 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    BashOperator(task_id="report", bash_command=COMMAND)
