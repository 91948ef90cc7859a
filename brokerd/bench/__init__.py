"""Benchmarks: daemons and load processes of their own, measured, as one JSON result.

Each command of `brokerd bench` is a module of its name: `local`, `peer`, `replay`, `latency`,
`large`, `stalled`, `backlog`, `dialogs`, `idle`, `activation`, `route`, `scale` and `stages`.
`comparison` is `brokerd bench compare`. They call, in reading order:

    measuring   options, settings and directories of all benchmarks
    daemons     daemons that are started for a benchmark; `children`: their processes;
                `sampled`: a daemon that reports its processor time by module
    watching    counters and processor time of daemons, at the beginning and the end
    opening     dialogs that are begun before measuring
    loads       load processes of a phase, and the sum of their results
    load        one load process: a program of its own; `play`, `schedule`: recorded traffic;
                `tally`, `stamps`: its counts
    drawing     a result as an SVG picture
"""
