"""The log of this layer: reports of errors that no caller receives.

Reads:  whether structlog has been set up, as the daemon and the worker do.
Never:  sets up logging: in a user's program it writes to `logging`, as libraries do.
"""

import logging
from typing import Any


def logger(**bound: object) -> Any:  # noqa: ANN401  # structlog's own type
    """Return a logger that adds these fields to each line: `log.info("picked", sku=...)`.

    Raises: nothing.
    """
    import structlog  # noqa: PLC0415  # slow to import, and most programs log nothing

    if structlog.is_configured():
        return structlog.get_logger().bind(**bound)
    return structlog.wrap_logger(
        logging.getLogger("brokerd.app"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    ).bind(**bound)
