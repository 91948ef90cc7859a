"""The simulation: whole instances, clients and faults in one process and virtual time, from a seed.

    python -m tests.engine.simulation --seed 7 --trace

Reads:  a seed.      Calls: real instances, real stores in line, the SDK, the checker.
Never:  depends on the machine: time, network, ids, randomness and the moments at which commits
complete are drawn, so a seed always gives the same run.
"""
