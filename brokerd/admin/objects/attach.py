"""Attaching: keeps a copy of a store from delivering messages (MAN-7, OBJ-3, PBT-13).

Reads: the store's identity, the other brokers.      Calls: storage.
Never: changes an identifier; an administrator decides about a copy (MAN-8).
"""

from collections.abc import Iterable
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.ids import InstanceId, show
from brokerd.model import MSDB
from brokerd.storage.store import Store
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

FOREIGN: Final = "foreign_fingerprint"
DUPLICATE: Final = "duplicate_identifier"
_HINTS: Final = {
    FOREIGN: "brokerd broker enable if it was moved here, new-id if the original still runs, "
    "error-conversations if it is older than what its peers know",
    DUPLICATE: "brokerd broker new-id gives it an identifier of its own",
}


async def attach(
    store: Store,
    *,
    instance_id: InstanceId,
    host: bytes | None,
    others: Iterable[Broker],
    log: Log,
    mirrored: bool = False,
) -> None:
    """Switch delivery off, durably and with a log line, if the store looks like a copy.

    `mirrored`: the file is shared with a partner, so the instance that has it open owns the
    store (RTE-55).

    The other brokers are checked last, so that no other task can run between this check and the
    return if delivery stays on.
    """
    identity = store.identity
    if identity.broker_name == MSDB:
        return
    if mirrored and (identity.instance_id, identity.host) != (instance_id, host):
        await store.change_identity(instance_id=instance_id, host=host)
        identity = store.identity
    elsewhere = identity.host is not None and host is not None and identity.host != host
    is_foreign = identity.instance_id != instance_id or elsewhere
    if not is_foreign and identity.host is None and host is not None:
        await store.change_identity(host=host)
    reason: str | None = FOREIGN if is_foreign else None
    if not is_foreign and any(other.delivers_under(identity.broker_id) for other in others):
        reason = DUPLICATE
    if reason is None or not identity.is_broker_enabled:
        return
    await store.change_identity(is_broker_enabled=False, disabled_reason=reason)
    log.warning(
        ADMINISTRATION,
        subclass="disable",
        actor="the daemon, at opening the store",
        broker=identity.broker_name,
        broker_id=show(identity.broker_id),
        before={"is_broker_enabled": True},
        after={"is_broker_enabled": False, "disabled_reason": reason},
        hint=_HINTS[reason],
    )
