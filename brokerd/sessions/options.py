"""Limits on the clients of an instance (reliability, section 6)."""

import msgspec

from brokerd.protocol import client_frames as frames


class SessionOptions(msgspec.Struct, frozen=True):
    """Limits on clients (reliability, section 6)."""

    clients: int = 1000
    per_address: int = 64
    logins: int = 64
    """Connections that have not logged in, in addition to those that have (END-18)."""
    logins_per_address: int = 16
    login_timeout: float = 10.0
    """Seconds within which HELLO has to arrive (CLP-10)."""
    outstanding: int = frames.OUTSTANDING
    """Unanswered requests of one client (CLP-30)."""
    transactions: int = 16
    transactions_in_all: int = 2000
    waiting: int = 64
    """Receives of one client that wait for a message."""
    waiting_in_all: int = 5000
    transaction_age: float = 600.0
    """Seconds a transaction may hold locks (CLP-61, PBT-18)."""
    dialogs_per_user: int = 0
    """Open dialogs that one user may have begun in a broker; 0 = no limit (REL-45)."""
    transaction_idle: float = 60.0
    """Seconds a transaction may be unused; it is in use while one of its requests runs or waits."""
    silence: float = frames.SILENCE_LIMIT
    backlog_bytes: int = 16 * 1024 * 1024
    """Number of bytes not yet durable above which clients are no longer read (design D3)."""
    backlog_age: float = 1.0
    """Age in seconds of the oldest changeset not yet durable, above which clients are not read."""
