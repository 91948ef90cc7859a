"""Store engine: where the stores of an instance are: in files, or in a PostgreSQL database.

Reads:  settings.      Calls: `storage.postgresql`, imported only where `store.url` is set: its
        driver is an extra.
Never:  opens a store, or shows a password.
Fails:  `PostgresqlExtraMissing` if the driver is not installed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from brokerd.config.database_url import shown
from brokerd.config.settings import Settings
from brokerd.errors import PostgresqlExtraMissing, StoreMissing
from brokerd.ids import BrokerId, show
from brokerd.model import MSDB, Contract
from brokerd.storage.executors import Executor, Threaded
from brokerd.storage.files.private_files import SERVER_HISTORY

if TYPE_CHECKING:
    from brokerd.storage.postgresql.opening import ServerOptions
    from brokerd.storage.postgresql.survey import Survey


def executor_of(settings: Settings) -> Executor:
    """Return the executor of a daemon's stores.

    Raises:
        PostgresqlExtraMissing: the stores are in PostgreSQL, and its driver is not installed.
    """
    if not settings.is_on_server:
        return Threaded()
    options = server_options(settings)
    from brokerd.storage.postgresql.executor import OnServer  # noqa: PLC0415  # an extra

    return OnServer(settings.store.url, options)


def server_options(settings: Settings) -> "ServerOptions":
    """Return the options of stores in PostgreSQL.

    Raises:
        PostgresqlExtraMissing: the driver is not installed.
    """
    try:
        from brokerd.storage.postgresql.opening import ServerOptions  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise PostgresqlExtraMissing(
            f"store.url says that the stores are in PostgreSQL, and its driver is missing: {error}"
        ) from error
    store = settings.store
    return ServerOptions(
        synchronous_commit=store.synchronous_commit.value,
        require_standby=store.require_standby,
        schema_prefix=store.schema_prefix,
        shown=shown(store.url),
        history_file=settings.instance.data_dir / SERVER_HISTORY,
    )


def survey_of(settings: Settings) -> "Survey":
    """Look at the server of the stores, which need not be open.

    Raises:
        PostgresqlExtraMissing: the driver is not installed.
        StoreFault: the server cannot be reached, or refuses the login.
        StoreDamaged: the server cannot keep what stores promise, or `msdb` is damaged.
        StoreVersion: another version of this program made `msdb`.
    """
    options = server_options(settings)
    from brokerd.storage.postgresql.survey import survey  # noqa: PLC0415  # an extra

    return survey(settings.store.url, options)


def refuse_contracts_in_use(
    settings: Settings, broker: str, wanted: Mapping[str, Contract]
) -> None:
    """Raise `InUse` if open dialogs of a store on the server need a contract that changes.

    Raises:
        InUse: see above.
        PostgresqlExtraMissing: the driver is not installed.
        StoreFault: the server cannot be reached, or refuses the login.
    """
    options = server_options(settings)
    from brokerd.storage.postgresql import survey  # noqa: PLC0415  # an extra

    survey.refuse_contracts_in_use(settings.store.url, options, broker, wanted)


def place_of(settings: Settings, broker: str = MSDB) -> str:
    """Return where the store of a broker is, for messages."""
    if settings.is_on_server:
        return f"schema {settings.store.schema_prefix}{broker} of {shown(settings.store.url)}"
    return str(settings.store_path(broker))


def missing_store(settings: Settings, broker: str, broker_id: BrokerId) -> StoreMissing:
    """Return the error of a broker that the instance has, and that has no store (MAN-17)."""
    make = StoreMissing.for_schema if settings.is_on_server else StoreMissing.for_broker
    return make(broker, place_of(settings, broker), show(broker_id))
