"""Activation options: where and how a queue's readers run, as one JSON object (ACT-20). PURE.

Reads:  a text.      Calls: nothing.      Never: touches the store; `catalog.py` does.
"""

import msgspec

from brokerd.model import OWNER, Activation, Host


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    host: str = Host.DAEMON.value
    command: tuple[str, ...] = ()
    memory: int = Activation("").memory
    deadline: int | None = None
    ramp_interval: int | None = None
    initial_readers: int = 1
    drain_wait: int = Activation("").drain_wait
    spare: bool = True


def options_text(activation: Activation | None) -> str | None:
    """Return the text; None = all options have their defaults."""
    if activation is None:
        return None
    made = _Options(
        host=activation.host.value,
        command=activation.command,
        memory=activation.memory,
        deadline=activation.deadline,
        ramp_interval=activation.ramp_interval,
        initial_readers=activation.initial_readers,
        drain_wait=activation.drain_wait,
        spare=activation.spare,
    )
    return None if made == _Options() else msgspec.json.encode(made).decode()


def activation_of(
    handler: str, max_readers: int, enabled: bool, run_as: str | None, options: str | None
) -> Activation:
    """Return the activation of a row."""
    known = msgspec.json.decode(options or "{}", type=_Options)
    return Activation(
        handler=handler,
        max_readers=max_readers,
        enabled=enabled,
        run_as=run_as or OWNER,
        host=Host(known.host),
        command=known.command,
        memory=known.memory,
        deadline=known.deadline,
        ramp_interval=known.ramp_interval,
        initial_readers=known.initial_readers,
        drain_wait=known.drain_wait,
        spare=known.spare,
    )
