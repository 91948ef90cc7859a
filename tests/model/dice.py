"""Dice: what a machine can do next, and how a few bytes become one step with its arguments.

Hypothesis draws the bytes of a step in one go, and this module turns them into a step that is
possible now. Drawing step and arguments each by themselves was 40 % of the time of a machine.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

Act = Callable[..., None]
Possible = Callable[[Any], object]
BYTES = 12
"""The dice of one step: which it is, and its arguments."""


PROGRAM = "The program:"
"""Begins what an error shows of a machine that failed."""


class Choice(Protocol):
    """Where an argument comes from."""

    def take(self, dice: Iterator[int]) -> Any:
        """The argument, by the next dice."""


class OneOf(NamedTuple):
    """One of these values; what stands there twice comes twice as often."""

    values: Sequence[Any]

    def take(self, dice: Iterator[int]) -> Any:
        """By one of the dice."""
        return self.values[next(dice) % len(self.values)]


class Several(NamedTuple):
    """A list, each of its members a tuple if there is more than one choice."""

    least: int
    most: int
    choices: Sequence[Choice]

    def take(self, dice: Iterator[int]) -> Any:
        """One of the dice says how many."""
        many = self.least + next(dice) % (self.most - self.least + 1)
        drawn = [tuple(one.take(dice) for one in self.choices) for _ in range(many)]
        return drawn if len(self.choices) > 1 else [one for (one,) in drawn]


class Step(NamedTuple):
    """Something a machine can do."""

    act: Act
    possible: Possible
    choices: dict[str, Choice]


STEPS: list[Step] = []
"""All there are, in the order in which they stand in the machine."""


def below(number: int) -> OneOf:
    """A number from zero to just below this one."""
    return OneOf(range(number))


def told(act: Act) -> Act:
    """If it fails, the error shows the whole program."""

    @wraps(act)
    def telling(machine: Any, **given: Any) -> None:
        try:
            act(machine, **given)
        except BaseException as error:
            if hasattr(machine, "driver"):
                error.add_note("\n".join([PROGRAM, *machine.driver.program]))
            raise

    return telling


def step(possible: Possible = bool, **choices: Choice) -> Callable[[Act], Act]:
    """The decorated method is a step, where it is `possible`, with these arguments."""

    def listed(act: Act) -> Act:
        STEPS.append(Step(told(act), possible, choices))
        return act

    return listed


def play(machine: Any, dice: bytes, seldom: int) -> None:
    """Do what the dice say. `seldom`: a bit for each step that is done only where nothing else is
    possible, so that machines differ in what they do much of."""
    able = [at for at, one in enumerate(STEPS) if one.possible(machine)]
    wanted = [at for at in able if not seldom >> at & 1] or able
    chosen = STEPS[wanted[dice[0] % len(wanted)]]
    rest = chain(dice[1:], repeat(0))
    chosen.act(machine, **{name: one.take(rest) for name, one in chosen.choices.items()})
