"""Remote service bindings: the principal whose key secures dialogs to a service (SEC-18).

PURE.   Reads: nothing.                         Calls: nothing.
Never:  stores bindings, or decides whether a dialog is secured: `security.dialog_kinds` does.
"""

from collections.abc import Callable

from msgspec import Struct


class Binding(Struct, frozen=True):
    """A remote service binding of one broker, needed on the initiating side only (SEC-18)."""

    name: str
    service_name: str
    """Remote service that dialogs are begun to."""
    principal: str
    """Owner of the certificate that proves the target: `peer:west`."""
    is_anonymous: bool = False
    """Whether the initiator stays unproven and acts as `public` (SEC-19)."""


BindingFor = Callable[[str, str], Binding | None]
"""Return the binding of a broker (by name) for a remote service; None = it has none."""


def no_binding(_broker: str, _service: str) -> Binding | None:
    """Return None: there are no bindings."""
    return None
