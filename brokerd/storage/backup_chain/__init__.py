"""Backup chain: a directory with the states of an instance's stores over time (REL-46 to REL-52).

A chain consists of generations. A generation is a directory that begins with a full copy of every
store and goes on with increments, which have the pages changed since. Each piece, full or
increment, has a manifest that gets its name last.
"""
