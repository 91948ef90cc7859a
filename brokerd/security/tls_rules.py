"""TLS rules: what every connection with TLS has in common, of peers, clients and programs (SX-4).

PURE.   Reads: nothing.      Calls: `ssl`.
Never:  needs a package beyond the standard library: programs use it too.
"""

import ssl
from typing import Final

_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the module `ssl` has no name for."""


def harden(context: ssl.SSLContext, *, checks_dates: bool) -> None:
    """Allow TLS 1.3 alone, and take each trusted certificate as an anchor, whoever issued it.

    `checks_dates`: whether OpenSSL checks the dates of the far end's certificate; False = the
    caller does, by the clock of the instance (SEC-11)."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.verify_flags = ssl.VerifyFlags(
        ssl.VERIFY_X509_PARTIAL_CHAIN
        | ssl.VERIFY_X509_TRUSTED_FIRST
        | (0 if checks_dates else _NO_CHECK_TIME)
    )
