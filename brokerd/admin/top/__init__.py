"""Top: the figures of an instance that `brokerd top` shows, and the frames of text made of them.

`attention.py` makes the lines of what asks for attention, and what explains each; `board.py` makes
figures and rates of two answers to `status`; `keys.py` is the state of the screen, and what each
key does to it; `frame.py` makes the lines of one frame. All are pure: `cli/top.py` asks the daemon,
reads keys and draws.
"""
