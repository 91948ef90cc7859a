"""Grammar of the statements that programs use: SEND, RECEIVE and their relatives. PURE.

Reads:  the tokens behind the first words of a statement.      Calls: cursor, tree.
Never:  reads an expression: it is passed over, to the parenthesis or word that ends it.
Fails:  with `Unexpected`, at the first token that does not fit.
"""

from typing import Any, Final

import msgspec

from brokerd.tsql.cursor import Cursor
from brokerd.tsql.objects import Where
from brokerd.tsql.tokens import Kind, Token
from brokerd.tsql.tree import BeginDialog, End, GetGroup, Move, Receive, Send, Statement, Timer

_NEXT: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "EXEC", "EXECUTE", "IF", "ELSE", "WHILE", "BEGIN"),
    *("END", "DECLARE", "SET", "PRINT", "CREATE", "ALTER", "DROP", "USE", "COMMIT", "ROLLBACK"),
    *("RETURN", "SEND", "WAITFOR", "BREAK", "GOTO", "RAISERROR", "THROW", "GRANT"),
)
"""Words that cannot stand in an expression without parentheses."""


def begin_dialog(here: Cursor, where: Where) -> BeginDialog:
    """Read the rest of BEGIN DIALOG."""
    here.accept("CONVERSATION")
    handle = here.value("a variable for the handle")
    here.expect("FROM", "SERVICE")
    said: dict[str, Any] = {"from_service": _name(here, "the name of a service")}
    here.expect("TO", "SERVICE")
    said["to_service"] = _name(here, "the name of a service")
    if here.accept(","):
        said["broker"] = _name(here, "the id of a broker, or 'CURRENT DATABASE'")
    if here.accept("ON"):
        here.expect("CONTRACT")
        said["contract"] = _name(here, "the name of a contract")
    if here.accept("WITH"):
        said |= _dialog_options(here)
    return BeginDialog(handle=handle, **said, **where)


def _dialog_options(here: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    known = ("RELATED_CONVERSATION", "RELATED_CONVERSATION_GROUP", "LIFETIME", "ENCRYPTION")
    while True:
        option = here.choose(*known)
        here.expect("=")
        if option == "ENCRYPTION":
            # Some scripts build the statement with a variable here, which the server refuses.
            said["encryption"] = None if here.is_variable() else here.switch()
            if said["encryption"] is None:
                here.skip()
        else:
            value = here.value("a value")
            if here.is_next("("):
                here.parenthesised()  # NEWID()
            if option == "LIFETIME":
                said["lifetime"] = value
            else:
                said["related"] = option
        here.accept(",")
        if not here.is_any(*known):
            return said


def timer(here: Cursor, where: Where) -> Timer:
    """Read the rest of BEGIN CONVERSATION TIMER."""
    here.parenthesised()
    here.expect("TIMEOUT", "=")
    return Timer(seconds=here.signed("a number of seconds"), **where)


def send(here: Cursor, where: Where) -> Send:
    """Read the rest of SEND ON CONVERSATION."""
    handles = 1
    if here.is_next("("):
        inside = here.parenthesised()
        handles += sum(one.text == "," for one in inside)
    else:
        here.value("the handle of a conversation")
    said: dict[str, Any] = {}
    if here.accept("MESSAGE"):
        here.expect("TYPE")
        said["message_type"] = _name(here, "the name of a message type")
    if here.is_next("("):
        said["has_body"] = bool(here.parenthesised())
    return Send(handles=handles, **said, **where)


def receive(here: Cursor, where: Where) -> Receive:
    """Read the rest of RECEIVE."""
    said: dict[str, Any] = {}
    if here.accept("TOP"):
        if here.is_next("("):
            said["top"] = "".join(one.text for one in here.parenthesised())
        else:
            said["top"] = here.value("a number of messages")
    here.skip_until("FROM", *_NEXT)
    here.expect("FROM")
    said["queue"] = here.names("the name of a queue")
    if here.accept("INTO"):
        said["into"] = here.value("a table variable")
    if here.accept("WHERE"):
        column = here.name("conversation_handle or conversation_group_id").lower()
        if column not in ("conversation_handle", "conversation_group_id"):
            here.index -= 1
            here.refuse("conversation_handle or conversation_group_id")
        here.expect("=")
        here.skip_until(",", "TIMEOUT", *_NEXT)
        said["where"] = column
    return Receive(**said, **where)


def get_group(here: Cursor, where: Where) -> GetGroup:
    """Read the rest of GET CONVERSATION GROUP."""
    here.value("a variable for the group")
    here.expect("FROM")
    return GetGroup(queue=here.names("the name of a queue"), **where)


def wait_for(here: Cursor, where: Where) -> Statement:
    """Read the rest of WAITFOR ( RECEIVE ... ), TIMEOUT n."""
    here.expect("(")
    found: Receive | GetGroup
    if here.accept("RECEIVE"):
        found = receive(here, where)
    else:
        here.expect("GET", "CONVERSATION", "GROUP")
        found = get_group(here, where)
    here.accept(";")
    here.expect(")")
    timeout = ""
    if here.accept(",") or here.is_next("TIMEOUT"):
        here.expect("TIMEOUT")
        timeout = here.signed("a number of milliseconds")
    return msgspec.structs.replace(found, waits=True, timeout=timeout)


def move(here: Cursor, where: Where) -> Move:
    """Read the rest of MOVE CONVERSATION."""
    here.value("the handle of a conversation")
    here.expect("TO")
    here.value("a conversation group")
    return Move(**where)


def end(here: Cursor, where: Where) -> End:
    """Read the rest of END CONVERSATION."""
    here.value("the handle of a conversation")
    said: dict[str, Any] = {}
    if here.is_next("WITH", "CLEANUP"):
        here.accept("WITH", "CLEANUP")
        said["cleanup"] = True
    elif here.is_next("WITH", "ERROR"):
        here.accept("WITH", "ERROR")
        here.expect("=")
        said["error"] = here.signed("an error number")
        here.expect("DESCRIPTION", "=")
        said["description"] = here.value("a description")
    return End(**said, **where)


def _name(here: Cursor, what: str) -> str:
    """Return a name that may be a word, a string, or a variable, which stays as it is written."""
    token = here.peek()
    if token is not None and token.kind is Kind.VARIABLE:
        return here.skip().text
    if token is not None and token.kind is Kind.STRING:
        return here.text(what)
    return here.name(what)


def is_receive(before: Token | None, after: Token | None) -> bool:
    """Return whether the word RECEIVE between these tokens begins a statement.

    It is no reserved word, so it may be the name of a column or a permission."""
    if before is not None and before.text in (".", ",", "=", "+", "::", ":"):
        return False
    if before is not None and before.upper in ("AS", "GRANT", "DENY", "REVOKE", "FOR"):
        return False
    if after is None:
        return False
    return after.text in ("*", "(", "@") or (
        after.kind in (Kind.WORD, Kind.QUOTED, Kind.VARIABLE, Kind.STRING)
        and after.upper not in ("ON", "AS", "FROM", "AND", "OR", "IS", "IN")
    )
