"""Timelines: the verb that reports both sides of a dialog (MON-55).

Reads:  arguments.     Calls: client.link.
Never:  takes part in a transaction, or returns the content of a message.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from brokerd.client.arguments import wire_id
from brokerd.protocol.inquiry import SideReport
from brokerd.protocol.trace import Step

if TYPE_CHECKING:
    from brokerd.client.link import Link


class DialogSides(msgspec.Struct, frozen=True):
    """Both sides of a dialog, as their instances report them."""

    conversation_handle: str
    conversation_id: str
    service: str
    """The service of the near side, whose handle was given."""
    far_service: str
    is_in_one_instance: bool
    """Whether both sides are in this instance, so that nobody had to be asked."""
    near: SideReport
    far: SideReport | None
    """The report of the far side; None = it could not be asked, or did not answer in time."""
    steps: tuple[Step, ...]
    """The way of the question to the far side, and of its answer back, instance by instance."""
    seconds: float
    """Time that the question took."""


class TimelineVerbs:
    """The verb for both sides of a dialog, a part of `session.admin`."""

    _link: "Link"

    async def timeline(self, handle: bytes, *, wait: float | timedelta = 3.0) -> DialogSides:
        """Return the state of both sides of a dialog, of the far side by asking its instance.

        The question goes the way of the dialog's messages, its answer the way of the replies; no
        message is sent and no content is passed on. `brokerd.admin.timeline.join` makes sums and
        moments from the reports. `wait`: seconds, or a timedelta, after which the answer comes
        without the far side.

        Raises:
            ConversationNotFound: the broker has no dialog with this handle.
            BrokerError: an error common to all requests; see `Session`.
        """
        seconds = wait.total_seconds() if isinstance(wait, timedelta) else float(wait)
        answer = await self._link.ask("dialog_timeline", (wire_id(handle, "handle"), seconds))
        return msgspec.convert(answer, DialogSides)
