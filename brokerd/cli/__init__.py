"""The command line: it parses, calls a daemon or a package, and prints.

`main.py` finds the command in its table and turns errors into one screen; each command has a module
of its name, such as `queue.py` for `brokerd queue`. They are built from:

- `object_commands.py` (create, alter and drop of any kind of object) with `object_keys.py`;
- `view_commands.py` (ls and show of any view);
- `session.py` (one session with a daemon), `options.py` (shared options), `output.py` (tables and
  JSON), `bodies.py` (messages), `examples.py` (ends of help texts);
- `doctor_observations.py` and `doctor_watch.py`, which read the rows that `doctor` checks, and
  `undelivered.py`, which explains to `send` and `receive` why no message came.

No other package imports this one; its modules are imported one at a time, so that `--help` is
quick.
"""
