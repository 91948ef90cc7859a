"""An Airflow DAG for the morning report: one run a day, back-fill by Airflow itself.

    cp deploy/airflow_dag.py $AIRFLOW_HOME/dags/brokerd_report.py

`brokerd` of the workers must be that of an environment with the extra `batch`. A run is for the
day that its data interval covers; it may be repeated, which changes nothing where nothing came
late. Only one runs at a time, for they share one lake.
"""

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

LANDING = "/srv/brokerd/landing"
REPORTS = "/srv/brokerd/reports"

# Status 1 asks for a look and does not fail the task; 2 does.
COMMAND = f"""
brokerd report run --landing {LANDING} --date {{{{ ds }}}} --output {REPORTS}
status=$?; [ $status -eq 1 ] && exit 0; exit $status
"""

with DAG(
    dag_id="brokerd_report",
    schedule="20 0 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    BashOperator(task_id="report", bash_command=COMMAND)
