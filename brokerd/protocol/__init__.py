"""The pure cores: values and bytes in, effects and bytes out; no clock, no socket, no store.

Three protocols, each in reading order:

- Dialogs between endpoints: `transitions` (states and allowed moves), `endpoint` (one side as a
  value), `dialog` (one step of it), `sending` (the window of unacknowledged messages), `fragments`.
- Instances next to each other: `frames` and `neighbour` (the frames), `items` and `item_decoding`
  (the content of boxcars), `connection` with `connection_effects` (one connection as a state
  machine), `arbitration` (which of several connections stays), `backoff`, and the frames `brokers`,
  `role` and `trace`; `passing` (an item on its way to another instance).
- Clients and the daemon: `client_frames`, `client_readers` (bytes to frames), `client_verbs` and
  `admin_verbs` (the arguments of every request).

All of them use `wire`. The shells that call these modules are in `transport`, `sessions`, `client`,
`broker` and `delivery`; nothing here calls them.
"""
