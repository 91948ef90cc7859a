"""What `brokerd top` shows: figures of an instance, and frames of text made of them.

`board.py` makes figures and rates of two answers to `status`; `keys.py` is the state of the
screen, and what each key does to it; `frame.py` makes the lines of one frame. All are pure:
`cli/top.py` asks the daemon, reads keys and draws.
"""
