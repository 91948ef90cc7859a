"""Verbs for peers, clients and certificates (CLP-160 to CLP-166, CLP-173).

Reads:  nothing.      Calls: nothing.
Never:  decides anything; `client_verbs` uses these forms to check requests.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

Named = Annotated[str, Meta(min_length=1, max_length=80)]
"""Name of a principal, with its kind: `peer:west`."""
Encoded = Annotated[bytes, Meta(min_length=1, max_length=64 * 1024)]
"""Certificates, each as bytes or as text; one text may have several."""
CertificateId = Annotated[bytes, Meta(min_length=32, max_length=32)]
Address = Annotated[str, Meta(max_length=1024)]
PurposeName = Literal["transport", "dialog"]
LONGEST_WAIT: Final = 600.0
"""Longest wait of one request for peers to install certificates, in seconds."""
Wait = Annotated[float, Meta(ge=0, le=LONGEST_WAIT)]
BOTH: Final[tuple[PurposeName, ...]] = ("transport", "dialog")
Purposes = Annotated[tuple[PurposeName, ...], Meta(min_length=1, max_length=2)]


class InstallOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a request to install something for a principal."""

    certificates: Annotated[list[Encoded], Meta(max_length=16)] = []
    addresses: Annotated[list[Address], Meta(max_length=64)] | None = None
    """Addresses that only this peer may serve, in place of those it has; None = as they are."""


class InstallPrincipal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to add a peer or a client, or to install more for it (CLP-160)."""

    name: Named
    options: InstallOptions = InstallOptions()


class RevokePrincipal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to remove a peer or a client, with its certificates and grants (CLP-161)."""

    name: Named


class OwnCertificates(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the certificates that others install for this instance (CLP-162)."""

    wait: Wait = 0.0
    """Longest wait for peers to install the next ones, in seconds."""


class MakeCertificates(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to make the next certificates of this instance (CLP-163)."""

    purposes: Purposes = BOTH


class SwitchOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a request to use the next certificates."""

    wait: Wait = 0.0
    """Longest wait for peers to install them, in seconds."""
    anyway: bool = False
    """Whether to use them although peers have not installed them."""


class SwitchCertificates(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to use the next certificates of this instance from now on (CLP-164)."""

    purposes: Purposes = BOTH
    options: SwitchOptions = SwitchOptions()


class DropCertificate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to remove one certificate (CLP-165)."""

    certificate_id: CertificateId


class ReplaceMasterKey(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to give the lost master key up, and make another (CLP-166)."""


class RotateMasterKey(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to make another master key, which takes over from the present one (CLP-173)."""


CredentialVerb = (
    InstallPrincipal
    | RevokePrincipal
    | OwnCertificates
    | MakeCertificates
    | SwitchCertificates
    | DropCertificate
    | ReplaceMasterKey
    | RotateMasterKey
)
CREDENTIAL_VERBS: Final[dict[str, type[CredentialVerb]]] = {
    "install_principal": InstallPrincipal,
    "revoke_principal": RevokePrincipal,
    "own_certificates": OwnCertificates,
    "make_certificates": MakeCertificates,
    "switch_certificates": SwitchCertificates,
    "drop_certificate": DropCertificate,
    "replace_master_key": ReplaceMasterKey,
    "rotate_master_key": RotateMasterKey,
}
