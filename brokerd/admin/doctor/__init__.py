"""The doctor: finds faults of an instance, or between two services, and names the cure.

`findings.py` defines a finding, its level and the exit status; `checks.py` holds the checks of a
whole instance, `pair_checks.py` those of one service to another. All are functions of rows that
`gathering.py` has read from a source: inside the daemon (`own.py`) or over a session
(`cli/doctor_observations.py`). `cli/doctor.py` calls them and prints their findings.
"""
