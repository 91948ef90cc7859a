"""What an administrator does to single dialogs; a program in service has no use for it (DLG-23).

Reads:  arguments.     Calls: client.link.
Never:  part of a transaction: each call stands alone, and the daemon writes it to its log.
"""

from brokerd.client.link import Link
from brokerd.client.messages import wire_id, wire_text


class Admin:
    """The verbs of administration of one session: `session.admin`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def clean_up(self, handle: bytes, reason: str, *, tell_peer: bool = False) -> None:
        """End a dialog WITH CLEANUP: this side is removed whatever its state (DLG-T27).

        Messages of it that were not sent or not read are deleted, and the other side is not told
        unless `tell_peer`. It may go on for as long as the lifetime, and lack what this side
        believes sent; what it repeats is refused, never delivered again (DLG-24, PBT-9). `reason`
        is for the log.
        """
        args = (wire_id(handle, "handle"), wire_text(reason, "reason"), bool(tell_peer))
        await self._link.ask("clean_up", args)
