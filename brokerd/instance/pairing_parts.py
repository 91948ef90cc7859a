"""Pairing parts: makes the verbs of pairing, and connects them.

Reads:  settings.      Calls: the constructors of those parts.
Never:  starts or waits for anything; `Instance` calls this once the other parts are built.
"""

from typing import Final

from brokerd.admin.pairing.acquaintance import Self, Wishes
from brokerd.admin.pairing.introductions import Introduced, Introductions
from brokerd.admin.pairing.pairing import Pairing
from brokerd.config.settings import Encryption, Settings
from brokerd.ids import secret_bytes
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.model import is_system

CONFIRM_WAIT: Final = 10.0
"""Seconds in which a ping shows that the other side of a pairing has installed this one."""


def build_pairing(parts: Parts, settings: Settings, world: Surroundings) -> None:
    """Build the verbs of pairing, and have bindings checked for principals that exist."""
    objects = parts.administration.objects
    objects.has_principal = parts.credentials.principals.__contains__
    endpoint = settings.endpoint
    own = Self(
        name=settings.instance.name,
        credentials=parts.credentials,
        endpoint=parts.destinations.endpoint,
        is_encrypted=endpoint is not None and endpoint.encryption is not Encryption.DISABLED,
        clock=world.clock,
    )
    introductions = Introductions(
        store=parts.credential_store,
        grants=parts.grants,
        objects=objects,
        clock=world.clock,
        log=world.log,
    )

    async def confirm(introduced: Introduced, wishes: Wishes) -> bool:
        theirs, ours = introduced.peer.services, wishes.broker.services
        services = [one for one in theirs if one not in ours]
        answered = sorted(one for one in ours if one not in theirs and not is_system(one))
        if not services or not answered:
            return False
        answer = await parts.pinging.ping(
            wishes.broker,
            services[0],
            broker_id=None,
            from_service=answered[0],
            wait=CONFIRM_WAIT,
        )
        return answer.is_complete

    pairing = Pairing(
        own=own,
        instance_id=lambda: parts.instance_id,
        introductions=introductions,
        network=world.network,
        confirm=confirm,
        connect_again=parts.destinations.check_identities,
        random=world.keys or secret_bytes,
        spawn=parts.tasks.spawn,
        clock=world.clock,
        audit=parts.audit,
    )
    parts.administration.pairing = pairing
    parts.destinations.peers.invites = pairing
