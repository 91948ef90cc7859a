"""Wheel files: a wheel read into memory, and written so that the same content gives the same bytes.

Reads:  wheels, as zip files.      Calls: nothing.
Never:  keeps the times, the order or the compression of a wheel that it has read.
"""

import base64
import hashlib
import stat
import zipfile
from dataclasses import dataclass, field
from email import message_from_string
from pathlib import Path

_WRITTEN = (2020, 2, 2, 0, 0, 0)
"""The time of each file; wheels say nothing about when they were made."""
_MODE = stat.S_IFREG | 0o644


@dataclass
class Wheel:
    """A wheel: its name, its version, its tags and its files."""

    name: str
    version: str
    tags: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    """Files that are installed into site-packages, by their paths."""
    info: dict[str, bytes] = field(default_factory=dict)
    """Files of the .dist-info folder, by their names in it, but for WHEEL and RECORD."""
    generator: str = "hatchling"

    @property
    def is_pure(self) -> bool:
        """Whether the wheel fits every platform."""
        return all(tag.endswith("-none-any") for tag in self.tags)

    @property
    def file_name(self) -> str:
        """The name of the file: tags that differ in the platform alone are joined by dots."""
        python, abi, _ = self.tags[0].split("-")
        platforms = ".".join(tag.split("-")[2] for tag in self.tags)
        return f"{self._stem}-{python}-{abi}-{platforms}.whl"

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields of METADATA, in their order."""
        head, _, _ = self.info["METADATA"].decode().partition("\n\n")
        return [
            (name, value) for name, _, value in (one.partition(": ") for one in head.split("\n"))
        ]

    def values(self, name: str) -> list[str]:
        """Return what METADATA says under a name, which may stand there several times."""
        return [value for field_name, value in self.fields if field_name == name]

    def metadata_with(self, fields: list[tuple[str, str]]) -> bytes:
        """Return METADATA with other fields, and the description that it has."""
        _, _, description = self.info["METADATA"].decode().partition("\n\n")
        head = "\n".join(f"{name}: {value}" for name, value in fields)
        return f"{head}\n\n{description}".encode()

    @property
    def _stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @classmethod
    def read(cls, path: Path) -> "Wheel":
        """Read a wheel."""
        with zipfile.ZipFile(path) as archive:
            content = {
                one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()
            }
        (folder,) = {name.split("/")[0] for name in content if ".dist-info/" in name}
        about = message_from_string(content.pop(f"{folder}/WHEEL").decode())
        del content[f"{folder}/RECORD"]
        inside = f"{folder}/"
        info = {
            name.removeprefix(inside): data
            for name, data in content.items()
            if name.startswith(inside)
        }
        stated = message_from_string(info["METADATA"].decode())
        return cls(
            name=stated["Name"],
            version=stated["Version"],
            tags=about.get_all("Tag", []),
            files={name: data for name, data in content.items() if not name.startswith(inside)},
            info=info,
            generator=about["Generator"],
        )

    def write(self, folder: Path) -> Path:
        """Write the wheel into a folder; return its path."""
        inside = f"{self._stem}.dist-info"
        content = dict(sorted(self.files.items()))
        content |= {f"{inside}/{name}": data for name, data in sorted(self.info.items())}
        content[f"{inside}/WHEEL"] = self._about()
        record = "".join(
            f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in content.items()
        )
        content[f"{inside}/RECORD"] = f"{record}{inside}/RECORD,,\n".encode()
        path = folder / self.file_name
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                entry = zipfile.ZipInfo(name, _WRITTEN)
                entry.external_attr = _MODE << 16
                entry.create_system = 3  # Unix, wherever it is written
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
        return path

    def _about(self) -> bytes:
        lines = ["Wheel-Version: 1.0", f"Generator: {self.generator}"]
        lines += [f"Root-Is-Purelib: {str(self.is_pure).lower()}"]
        return ("\n".join([*lines, *(f"Tag: {tag}" for tag in self.tags)]) + "\n").encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
