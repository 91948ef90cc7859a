"""The nightly report, from the side of the command line; `spark_jobs/` makes the report.

`shipping.py` copies sealed segments of the metrics log to the landing, where the report reads them;
`report.py` runs the report as a child process, on a Java runtime that `java.py` finds or prepares;
`comparison.py` compares two finished reports by their summaries. The modules do not call each other
except that `report.py` calls `java.py`; the commands `ship` and `report` call them.
"""
