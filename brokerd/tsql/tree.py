"""The statements of Service Broker, as values. PURE.

Reads, calls: nothing.
Never:  holds more of a statement than the assessment, the objects and the handlers need.

A statement knows its place in the script, the database that was in use, and the module (procedure,
trigger or function) that contains it. A text that begins with `@` or `$(` is known only when the
script runs.
"""

from enum import StrEnum

from msgspec import Struct

Name = tuple[str, ...]
"""A name with its schema and database, if they were written."""


class Action(StrEnum):
    """The action of a statement on an object."""

    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"


class Activation(Struct, frozen=True, kw_only=True):
    """The clause ACTIVATION of a queue; None = the statement does not say it."""

    drop: bool = False
    status: bool | None = None
    procedure: Name | None = None
    max_readers: int | None = None
    execute_as: str | None = None


class Statement(Struct, frozen=True, kw_only=True):
    """A statement, and where it stands."""

    at: int
    end: int = 0
    database: str = ""
    """The database in use; empty = the script has not said."""
    module: int | None = None
    """Index of the module that contains the statement, in `Script.modules`."""
    is_dynamic: bool = False
    """Whether it stands in a string that the script executes."""


class MessageType(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP MESSAGE TYPE."""

    action: Action
    name: str
    validation: str | None = None
    schema_collection: Name | None = None


class Contract(Statement, frozen=True, kw_only=True):
    """CREATE, DROP CONTRACT; `types`: message type and sender."""

    action: Action
    name: str
    types: tuple[tuple[str, str], ...] = ()


class Queue(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP QUEUE."""

    action: Action
    name: Name
    status: bool | None = None
    retention: bool | None = None
    activation: Activation | None = None
    poison: bool | None = None
    upkeep: str = ""
    """REBUILD, REORGANIZE or MOVE TO, which concern the pages of a queue."""


class Service(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP SERVICE."""

    action: Action
    name: str
    queue: Name | None = None
    contracts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Route(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP ROUTE."""

    action: Action
    name: str
    service: str | None = None
    broker: str | None = None
    address: str | None = None
    mirror: str | None = None
    lifetime: int | None = None


class Binding(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP REMOTE SERVICE BINDING."""

    action: Action
    name: str
    service: str | None = None
    user: str | None = None
    anonymous: bool | None = None


class Priority(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP BROKER PRIORITY; a criterion of ANY stays a word."""

    action: Action
    name: str
    contract: str | None = None
    local_service: str | None = None
    remote_service: str | None = None
    level: int | None = None


class Notification(Statement, frozen=True, kw_only=True):
    """CREATE, DROP EVENT NOTIFICATION."""

    action: Action
    name: str
    scope: str = ""
    """SERVER, DATABASE or QUEUE."""
    queue: Name | None = None
    fan_in: bool = False
    events: tuple[str, ...] = ()
    service: str = ""
    broker: str = ""


class Endpoint(Statement, frozen=True, kw_only=True):
    """CREATE, ALTER, DROP ENDPOINT, for SERVICE_BROKER."""

    action: Action
    name: str
    state: str | None = None
    port: int | None = None
    address: str | None = None
    authentication: str | None = None
    encryption: str | None = None
    forwarding: bool | None = None
    forward_size: int | None = None


class BeginDialog(Statement, frozen=True, kw_only=True):
    """BEGIN DIALOG."""

    handle: str
    from_service: str
    to_service: str
    broker: str = ""
    contract: str = "DEFAULT"
    related: str = ""
    """RELATED_CONVERSATION or RELATED_CONVERSATION_GROUP."""
    lifetime: str = ""
    encryption: bool | None = None


class Timer(Statement, frozen=True, kw_only=True):
    """BEGIN CONVERSATION TIMER."""

    seconds: str


class Send(Statement, frozen=True, kw_only=True):
    """SEND."""

    handles: int
    """How many conversations it sends on."""
    message_type: str = "DEFAULT"
    has_body: bool = False


class Receive(Statement, frozen=True, kw_only=True):
    """RECEIVE, with or without WAITFOR."""

    queue: Name
    top: str = ""
    into: str = ""
    where: str = ""
    waits: bool = False
    timeout: str = ""


class GetGroup(Statement, frozen=True, kw_only=True):
    """GET CONVERSATION GROUP."""

    queue: Name
    waits: bool = False
    timeout: str = ""


class Move(Statement, frozen=True, kw_only=True):
    """MOVE CONVERSATION."""


class End(Statement, frozen=True, kw_only=True):
    """END CONVERSATION."""

    error: str = ""
    description: str = ""
    cleanup: bool = False


class Database(Statement, frozen=True, kw_only=True):
    """One option of ALTER DATABASE or CREATE DATABASE that concerns the broker."""

    name: str
    option: str


class Grant(Statement, frozen=True, kw_only=True):
    """GRANT, DENY or REVOKE."""

    verb: str
    permissions: tuple[str, ...]
    kind: str
    """The class before `::`; empty if there is none."""
    name: Name
    principals: tuple[str, ...]


class Security(Statement, frozen=True, kw_only=True):
    """A certificate, a key, a user, a login, or a change of owner."""

    what: str
    """The first words, as in CREATE CERTIFICATE."""
    name: str = ""
    names: frozenset[str] = frozenset()
    """Other names in the statement: owners, certificates, logins."""


class Collection(Statement, frozen=True, kw_only=True):
    """CREATE XML SCHEMA COLLECTION."""

    name: Name
    schema: str = ""
    """The schema, if it is written out in the script."""


class Mention(Statement, frozen=True, kw_only=True):
    """A catalog view, or a function about the broker, in a query."""

    name: str


class Read(Statement, frozen=True, kw_only=True):
    """A name after FROM or JOIN; the translation keeps those of queues."""

    name: Name


class Dynamic(Statement, frozen=True, kw_only=True):
    """A string with a broker's statement that is put together at run time."""

    said: str
    """The words it begins with, such as CREATE QUEUE."""


class Unread(Statement, frozen=True, kw_only=True):
    """A statement that begins as a broker's and does not go on like one."""

    said: str
    expected: str
    found: str
    found_at: int


class Module(Struct, frozen=True, kw_only=True):
    """A procedure, trigger or function."""

    kind: str
    name: Name
    database: str
    at: int
    end: int
    strings: tuple[tuple[str, int], ...]
    """The short strings in it and their places: among them are the message types it asks for."""


class Script(Struct, frozen=True, kw_only=True):
    """A script that was read."""

    path: str
    text: str
    statements: tuple[Statement, ...]
    modules: tuple[Module, ...]
    batches: int
