"""The doctor: finds faults of an instance, or between two services, and names the cure.

`findings.py` defines a finding, its level and the exit status; `checks.py` holds the checks of a
whole instance, `pair_checks.py` those of one service to another. All are functions of rows that
`cli/doctor_observations.py` has read; none opens a connection. `cli/doctor.py` calls them and
prints their findings.
"""
