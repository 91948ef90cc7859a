"""brokerd: dialogs between services that survive crashes. What programs import, nothing else."""

from brokerd import errors
from brokerd.client import sync
from brokerd.client.messages import ABSENT, CURRENT_DATABASE, FOREVER, Message
from brokerd.client.recorder import Recorder
from brokerd.client.session import Session, connect
from brokerd.client.transaction import Transaction
from brokerd.errors import BrokerError, RemoteError

__all__ = [
    "ABSENT",
    "CURRENT_DATABASE",
    "FOREVER",
    "BrokerError",
    "Message",
    "Recorder",
    "RemoteError",
    "Session",
    "Transaction",
    "connect",
    "errors",
    "sync",
]
