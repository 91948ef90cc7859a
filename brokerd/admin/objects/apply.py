"""Apply: makes the changes of a plan, for each broker all or none (design D9, MAN-14).

Reads:  the plan; the broker only to find dialogs that began since the plan was checked.
Calls:  terminate, rebind, storage.
Never:  drops an object that open dialogs need, unless ordered to, or changes two brokers in one
        commit.
"""

from brokerd.admin.objects.check import refuse_in_use_in_memory
from brokerd.admin.objects.plan import Plan, catalog_changes
from brokerd.admin.objects.rebind import apply_moving
from brokerd.admin.objects.terminate import Tell, terminate
from brokerd.broker.broker import Broker
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes
from brokerd.storage.rows.catalog import Catalog


async def apply(
    plan: Plan, broker: Broker, instance: Broker, *, tell: Tell, terminate_existing: bool = False
) -> None:
    """Make the changes: those of the broker in one commit, those of `msdb` in another.

    `terminate_existing`: first end the dialogs that need a dropped object, and notify their far
    sides. This takes many commits; after a crash in between, the objects and the dialogs not yet
    ended still exist. Raises `InUse` or `ObjectsRefused` with nothing changed.
    """
    now = broker.clock.utc()
    if plan.own:
        # No dialog may begin that needs a dropped object while its users are counted, in memory and
        # in the store, or ended.
        broker.close_objects(
            services={use.service for use in plan.unused if use.service},
            contracts={use.contract for use in plan.unused if use.contract},
        )
        try:
            if terminate_existing and plan.endings:
                await terminate(broker, plan.endings, tell)
            elif plan.unused:  # a dialog that began since the check is in memory; none begins now
                refuse_in_use_in_memory(plan.unused, broker)
                await broker.store.commit(Changes())  # writes all commits that have joined so far
            changes = catalog_changes(plan.own, now, plan.unused)
            catalog: Catalog = (
                await apply_moving(broker, changes, plan.moved)
                if plan.moved
                else await broker.store.apply_catalog(changes)
            )
        except BaseException:
            broker.close_objects()
            raise
        broker.use_catalog(catalog)
        _remove_closed(broker)
    if plan.shared:
        instance.use_catalog(await instance.store.apply_catalog(catalog_changes(plan.shared, now)))


def _remove_closed(broker: Broker) -> None:
    """Drop from memory the closed endpoints of dropped services, whose rows are already deleted.

    They were kept only to recognise repeated messages."""
    for live in broker.endpoints.all():
        if live.endpoint.service not in broker.services:
            assert live.endpoint.state is State.CLOSED, "a service was dropped with open dialogs"
            broker.forget(live)
