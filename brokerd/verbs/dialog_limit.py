"""The limit of the dialogs that one user may have begun (REL-45).

Reads:  the broker's count of owners.      Calls: broker.dialog_owners.
Never:  counts a dialog that the fast path begins and ends in one transaction: nothing of it stays
        at its initiator (DLG-16).
"""

from __future__ import annotations

from functools import partial

from brokerd.broker.blocked import Blocked
from brokerd.broker.broker import Broker
from brokerd.errors import QuotaExceeded
from brokerd.units import counted


def before_begin(broker: Broker, user: str, most: int) -> Blocked | None:
    """Check that a user may begin another dialog. Return the wait while its dialogs are counted.

    Raises:
        QuotaExceeded: it has as many open dialogs as one user may have.
    """
    owners = broker.owners
    if owners.may_begin(user, most):
        return None
    if not owners.is_fresh(user):
        return Blocked("dialogs", partial(owners.count, user))
    owners.refuse(user, most)
    raise QuotaExceeded(
        f"user {user!r} has {counted(most, 'open dialog')} in broker {broker.name!r}, and may not "
        "begin another",
        hint="end dialogs that are over (brokerd dialog ls), or raise clients.max_dialogs_per_user",
    )
