"""Tools for your tests and brokerd's: virtual time, a breakable network, histories, a checker.

Nothing in brokerd imports this package. Three parts, each in reading order:

    plugin, rig     pytest fixtures with real instances (docs/how-to/testing-your-code.md)
      left            work that an instance still has to do, for assertions
    loop            asyncio on virtual time: `handles`, `stuck`, `clock`, `rng`
    network         simulated nodes: `places`, `link`, `mangler`, `pipe`, `stream`, `trace`
    history         events of a run, one per line
      check           the promises about a history: `evidence`, `order`, `properties`

The rig calls the loop, the network and an instance. The checker reads only histories. Whole
instances under drawn faults are simulated by `tests/engine`, which is not installed.
"""
