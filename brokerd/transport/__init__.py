"""Sockets and connections to peers: thin shells around the pure parts (END, TRN).

In reading order: `network` (listening and connecting, behind a protocol that a simulation
implements), `listener` and `accepting` (one listening address; `door` limits what it accepts),
`connection` (one TCP stream and its `protocol.connection`), `peers` (which connection is ONLINE for
each peer), `destination` and `dialer` (one address, its figures and its attempts), `endpoint` and
`endpoint_life` (the addresses that the instance listens on). `destinations` puts them together for
`delivery`; `meeting` has the types that the two exchange. `neighbours` sends advisory frames,
`events` writes the log lines, `listeners` finds out which process listens on an address.

Calls go down this list, from `destinations` to `network`; arrivals come back through the callbacks
of `meeting`. Nothing here reads a store or decides where a message goes.
"""
