"""Resources: finds the folders that brokerd ships next to its code.

Reads:  directory entries, in a checkout and in an installed wheel alike.
Never:  copies, creates or changes a file.
"""

from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def migrations_dir() -> Path:
    """Return the Alembic folder, with `env.py` and `versions/`."""
    return _shipped("migrations")


def config_dir() -> Path:
    """Return the folder of the commented example configurations."""
    return _shipped("config")


def spark_jobs_dir() -> Path:
    """Return the folder of the package `spark_jobs`, which can be imported under that name too."""
    spec = find_spec("spark_jobs")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package spark_jobs is not installed beside brokerd")
    return Path(spec.submodule_search_locations[0]).resolve()


def _shipped(name: str) -> Path:
    """Return `brokerd/_<name>` in a wheel, or `<name>` next to the package in a checkout."""
    candidates = (_PACKAGE / f"_{name}", _PACKAGE.parent / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    tried = " and ".join(str(folder) for folder in candidates)
    raise FileNotFoundError(f"this installation of brokerd lacks its folder {name}: tried {tried}")
