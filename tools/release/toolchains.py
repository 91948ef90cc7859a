"""Toolchains: how the compiled part is made for each platform that a release has a wheel for.

Reads:  what of the release tools is installed.      Calls: nothing; it makes command lines.
Never:  looks for headers elsewhere than in this Python: the stable ABI's are the same everywhere.

Zig's C compiler, from PyPI, links for any version of glibc and for musl, on any machine. Without it
the system's compiler makes one wheel, which needs the glibc of this machine or a newer one.
"""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ZIG_FLAGS: Final = ("-fno-sanitize=all", "-g0", "-s")


@dataclass(frozen=True)
class Platform:
    """A platform: its tag, and the compiler that makes the compiled part for it."""

    tag: str
    """The tag of the wheel, such as manylinux_2_17_x86_64."""
    compiler: str
    """The command line of the compiler, as in CC."""

    patchelf: str = ""
    """The program that gives musl the name that it has on Alpine Linux; "" = nothing to do."""

    @property
    def machine(self) -> str:
        """The type of processor: x86_64, aarch64."""
        return next(one for one in MACHINES if self.tag.endswith(one))

    @property
    def is_here(self) -> bool:
        """Whether the wheel can be installed and tried on this machine."""
        return self.tag.startswith("manylinux") and self.machine == platform.machine()


MACHINES: Final = ("x86_64", "aarch64")
_TARGETS: Final = {
    "manylinux_2_17": "{machine}-linux-gnu.2.17",
    "musllinux_1_2": "{machine}-linux-musl",
}
"""The target in Zig by the kind of tag."""


def platforms(python: Path) -> list[Platform]:
    """Return the platforms that the release tools compile for; `python` has them installed."""
    return [
        Platform(
            f"{kind}_{machine}",
            " ".join(
                [
                    *(str(python), "-m", "ziglang", "cc"),
                    *("-target", target.format(machine=machine), *_ZIG_FLAGS),
                ]
            ),
            str(python.parent / "patchelf") if kind.startswith("musl") else "",
        )
        for kind, target in _TARGETS.items()
        for machine in MACHINES
    ]
