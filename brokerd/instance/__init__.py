"""One instance: builds its parts, connects them, starts and stops them in order.

In reading order:

- `instance.py`: the order of start and stop.
- `parts.py`: the record of the parts; `assembly.py` fills and connects it.
- `stores.py`: opens, recovers and closes the stores; `preflight.py` refuses a start before that.
- `tasks.py`: the condition of the instance, its short tasks, and the error that ends it.
- `broker_events.py`, `peer_traffic.py`, `reader_events.py`, `changes.py`: the calls that parts make
  to parts that they do not import. These modules have only calls that do more than forward, or that
  reach a part made later; any other part gets a bound method of the part that it calls.
- `passes.py`: the table of periodic work; `part_options.py`: the settings of each part.
- `embedded.py`: the same instance inside a program's process, on one file.

Calls go from this package into every package of the daemon; the parts call back through their
listeners. Above it are `process/`, which runs an instance as a daemon, and the tests, which run the
same instance in other `surroundings.py`.
"""
