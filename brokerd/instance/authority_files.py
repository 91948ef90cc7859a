"""AuthorityFiles: the files of the section `ca`, read again when they change (SEC-69).

Reads:  the files that the settings name.       Calls: `security.authority`, the log.
Never:  uses a private key that other users can read (SX-24).
Fails:  `InvalidArgument` while a file cannot be used: nobody is let in, and nothing is connected.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from brokerd.config.settings import CertificateAuthority
from brokerd.errors import BrokerError, InvalidArgument
from brokerd.security.authority import Authority, read_revoked
from brokerd.security.certificates import Certificate
from brokerd.security.names import Kind
from brokerd.storage.files.private_files import open_secret
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CERTIFICATE

_MOST: Final = 16 * 1024 * 1024
"""Largest file that is read: lists of revoked certificates can be long."""
Stamp = tuple[tuple[int, int, int] | None, ...]


class AuthorityFiles:
    """The CA of one instance, as its files have it."""

    def __init__(self, settings: CertificateAuthority, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._stamp: Stamp | None = None
        self._checked = self._stamps()
        self._watchers: list[Callable[[], int]] = []
        self._found: Authority | None = None
        self._problem: BrokerError | None = None

    def vouching_for(self, kind: Kind) -> Callable[[], Authority] | None:
        """Return a function that returns the CA; None = it vouches for nobody of this kind."""
        return self.authority if self.has_rule(kind) else None

    def has_rule(self, kind: Kind) -> bool:
        """Return whether a CA vouches for principals of this kind."""
        rule = self._settings.peers if kind is Kind.PEER else self._settings.clients
        return self._settings.file is not None and bool(rule)

    def certificate(self) -> Certificate | None:
        """Return the certificate of this instance; None = there is no CA, or it cannot be read."""
        if self._settings.file is None:
            return None
        try:
            return self.authority().certificate
        except BrokerError:
            return None

    def watch(self, end_vouched: Callable[[], int]) -> None:
        """Have connections for which the CA vouched ended when its files have changed.

        `end_vouched`: ends them, and returns their number."""
        self._watchers.append(end_vouched)

    def check(self) -> int:
        """Have connections ended if the files have changed; return how many (SEC-69)."""
        return sum(end() for end in self._watchers) if self.have_changed() else 0

    def have_changed(self) -> bool:
        """Return whether the files are others than at the previous call, or at the start."""
        before, self._checked = self._checked, self._stamps()
        return before != self._checked

    def authority(self) -> Authority:
        """Return what the files say now; the same object while they have not changed.

        Raises:
            InvalidArgument: a file is missing, or cannot be used.
            UnsafeFile: other users can read the private key, or change it.
        """
        stamp = self._stamps()
        if stamp != self._stamp:
            self._stamp, self._found, self._problem = stamp, None, None
            try:
                self._found = self._read()
            except BrokerError as error:
                self._problem = error
                self._log.error(
                    CERTIFICATE, subclass="authority", problem=error.message, hint=error.hint
                )
        if self._problem is not None:
            raise self._problem
        assert self._found is not None
        return self._found

    def _stamps(self) -> Stamp:
        one = self._settings
        paths = (one.file, one.certificate, one.key, one.crl_file)
        return tuple(None if path is None else _stamp(path) for path in paths)

    def _read(self) -> Authority:
        one = self._settings
        assert one.file is not None, "the settings have been checked"
        assert one.certificate is not None, "the settings have been checked"
        assert one.key is not None, "the settings have been checked"
        revoked = b""
        if one.crl_file is not None:
            revoked = read_revoked(_content(one.crl_file, "ca.crl_file"))
        made = Authority(
            trusted=_content(one.file, "ca.file"),
            revoked=revoked,
            own=_content(one.certificate, "ca.certificate"),
            key=_content(one.key, "ca.key", is_secret=True),
            peers=one.peers,
            clients=one.clients,
        )
        assert made.certificate.encoded
        return made


def _content(path: Path, setting: str, *, is_secret: bool = False) -> bytes:
    try:
        opened = open_secret(path) if is_secret else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise InvalidArgument(f"{setting}: {path} cannot be read: {error.strerror}") from error
    if len(content) > _MOST:
        raise InvalidArgument(f"{setting}: {path} is larger than {_MOST} bytes")
    return content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
