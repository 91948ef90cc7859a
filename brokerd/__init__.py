"""brokerd: dialogs between services that survive crashes. What programs import, nothing else."""

from brokerd import errors, sync
from brokerd.app.app import App
from brokerd.app.contract import Contract
from brokerd.app.deliveries import Delivery
from brokerd.app.dialog import Dialog, Timer
from brokerd.app.pool import DialogPool, PoolOptions, Receipt
from brokerd.app.reader import Ctx
from brokerd.app.session import Session
from brokerd.app.tracing import Tracing
from brokerd.client.file_recorder import FileRecorder
from brokerd.client.messages import ABSENT, CURRENT_DATABASE, FOREVER, Message
from brokerd.client.outcomes import End, Park, Reply, Retry
from brokerd.client.recorder import Recorder
from brokerd.client.transaction import Transaction
from brokerd.connecting import connect
from brokerd.errors import BrokerError, RemoteError
from brokerd.protocol import headers

__all__ = [
    "ABSENT",
    "CURRENT_DATABASE",
    "FOREVER",
    "App",
    "BrokerError",
    "Contract",
    "Ctx",
    "Delivery",
    "Dialog",
    "DialogPool",
    "End",
    "FileRecorder",
    "Message",
    "Park",
    "PoolOptions",
    "Receipt",
    "Recorder",
    "RemoteError",
    "Reply",
    "Retry",
    "Session",
    "Timer",
    "Tracing",
    "Transaction",
    "connect",
    "errors",
    "headers",
    "sync",
]
