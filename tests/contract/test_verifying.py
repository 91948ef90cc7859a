"""Verifying: everything in a store that cannot be is found, and what may be is left in peace."""

import hashlib
import json
import sqlite3
from contextlib import closing, suppress

import pytest

from brokerd.cli.main import main
from brokerd.errors import StoreDamaged, StoreFault
from brokerd.ids import BodyKey, QueueKey
from brokerd.model import Queue
from brokerd.storage.changes import BodyRow, Changes, Owner, PieceRow
from brokerd.storage.files.log_head import head_path
from brokerd.storage.hashes import large_hash
from brokerd.storage.rows.catalog import CatalogChanges
from brokerd.storage.verifying import MOST, verify

LARGE = BodyKey(1)
"""Of the last message sent, which is in two pieces."""


async def a_queue(store):
    made = await store.apply_catalog(CatalogChanges(queues=(Queue(QueueKey(0), "inbox"),)))
    return made.queues["inbox"].key


async def converse(store, rows):
    """An endpoint that has received three messages and sent three, none of them gone yet."""
    endpoint = rows.endpoint(store, send_sequence=3, receive_sequence=3)
    changes = Changes()
    changes.create(endpoint)
    queue = await a_queue(store)
    bodies = enumerate((b"in 0", b"in 1", b"in 2"))
    changes.enqueued += [rows.message(store, endpoint, n, it, queue=queue) for n, it in bodies]
    changes.outgoing += [rows.outgoing(store, endpoint, n, b"out %d" % n) for n in range(2)]
    pieces = [b"the first piece", b"and the other"]
    size, place = sum(map(len, pieces)), (endpoint.conversation_id, endpoint.is_initiator, 2)
    large = rows.outgoing(store, endpoint, 2, b"")
    large = large._replace(body=None, body_hash=large_hash(*place, LARGE, size))
    changes.outgoing.append(large)
    changes.bodies[LARGE] = BodyRow(LARGE, Owner.OUTGOING, large.transmission_order, size)
    changes.pieces += [PieceRow(LARGE, n, piece) for n, piece in enumerate(pieces)]
    await store.commit(changes)
    return [row.queuing_order for row in changes.enqueued]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.rule("HK-10")
async def test_a_store_in_use_is_whole(store, rows, look):
    assert look.findings() == []
    await converse(store, rows)
    assert look.findings() == []


@pytest.mark.rule("HK-10")
async def test_what_was_received_and_not_deleted_yet_is_no_message(store, rows, look):
    first, *_ = await converse(store, rows)
    changes = Changes()
    changes.dequeued.append(first)
    await store.commit(changes)
    look.change(f"UPDATE queue_messages SET body = x'00' WHERE queuing_order = {first}")
    assert look.findings() == []


@pytest.mark.rule("HK-10", "REL-6")
async def test_what_an_operator_has_discarded_leaves_no_finding(store, rows, look):
    _, middle, _ = await converse(store, rows)
    changes = Changes()
    changes.dequeued.append(middle)
    await store.commit(changes)
    assert look.findings() == []


@pytest.mark.rule("HK-10", "REL-6", "REL-33")
@pytest.mark.parametrize("owner", [Owner.ARRIVING, Owner.RETAINED])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE body_pieces SET data = x'00' WHERE body_key = 2 AND piece = 1",
        "DELETE FROM body_pieces WHERE body_key = 2 AND piece = 0",
    ],
)
async def test_pieces_of_every_owner_are_looked_at(store, rows, look, owner, statement):
    await converse(store, rows)
    changes = Changes()
    key = BodyKey(2)
    if owner is Owner.RETAINED:
        look.change("INSERT INTO retained_messages SELECT 77, queue_key, endpoint_key, handle,"
            " conversation_id, group_id, service, contract, 0, sequence, message_type,"
            " m.priority, enqueued_at, message_id, NULL, 0 FROM queue_messages AS m JOIN"
            " conversation_endpoints USING (endpoint_key) LIMIT 1")  # fmt: skip
    number = 77 if owner is Owner.RETAINED else 1
    changes.bodies[key] = BodyRow(key, owner, number, 8)
    changes.pieces += [PieceRow(key, 0, b"four"), PieceRow(key, 1, b"more")]
    await store.commit(changes)
    assert look.findings() == []
    look.change(statement)
    problem = "has a body that is not the one that was written"
    assert [(one.where, one.problem) for one in look.findings()] == [("body_key 2", problem)]


IMPOSSIBLE = [
    ("UPDATE conversation_endpoints SET state = 'XX'", "has a state that does not exist"),
    ("UPDATE conversation_endpoints SET priority = 11", "has numbers out of range"),
    ("DELETE FROM endpoint_progress", "is missing"),
    (
        "INSERT INTO endpoint_progress VALUES (99, 0, 0, 0, NULL)",
        "belongs to no endpoint, or is below",
    ),
    ("DELETE FROM conversation_endpoints", "belongs to no endpoint"),
    ("UPDATE queue_messages SET queue_key = 99", "is in a queue that does not exist"),
    ("UPDATE queue_messages SET sequence = -3", "has numbers out of range"),
    ("UPDATE queue_messages SET sequence = 0", "is not the only one of its sequence"),
    ("UPDATE endpoint_progress SET receive_sequence = 1", "is ahead of what its endpoint has rec"),
    ("UPDATE queue_messages SET body = x'00'", "has a body that is not the one that was written"),
    ("UPDATE transmission_queue SET sequence = 0", "is not the only one of its sequence"),
    ("UPDATE endpoint_progress SET send_sequence = 1", "is ahead of what its endpoint has sent"),
    ("DELETE FROM transmission_queue WHERE sequence = 1", "has a gap between its sequences"),
    ("UPDATE transmission_queue SET body_hash = NULL", "has a body that is not the one that was"),
    ("INSERT INTO bodies VALUES (7, 2, 99, 0)", "belongs to nobody that is there"),
    ("INSERT INTO body_pieces VALUES (7, 0, x'00', x'00')", "belongs to no body"),
    ("UPDATE body_pieces SET data = x'00' WHERE piece = 1", "has a body that is not the one"),
    ("DELETE FROM body_pieces WHERE piece = 1", "has a body that is not the one that was written"),
    ("UPDATE bodies SET owner = 0", "has a body that is not the one that was written"),
    ("INSERT INTO conversation_timers VALUES (99, '', 1, 0)", "belongs to no endpoint"),
    ("UPDATE store SET next_queuing_order = 1", "gives out numbers that are taken already"),
]


@pytest.mark.rule("HK-10", "BI-D3", "BI-D4")
@pytest.mark.parametrize(("statement", "problem"), IMPOSSIBLE)
async def test_what_cannot_be_is_found_and_left_as_it_is(
    open_store, rows, look, path, *, statement, problem
):
    store = await open_store()
    await converse(store, rows)
    await store.close()
    look.change(statement)
    found = look.findings()
    assert any(one.problem.startswith(problem) for one in found), found
    if path.exists():
        before = digest(path)
        assert verify(path) == found
        assert digest(path) == before


LEFT_OVER = [
    ("UPDATE transmission_queue SET endpoint_key = 99", "3 rows of 1 dialog"),
    ("UPDATE conversation_endpoints SET state = 'CD'", "3 rows of 1 dialog"),
    (
        "UPDATE conversation_endpoints SET state = 'DO', error_code = 1, end_sequence = 2",
        "2 rows of 1 dialog",
    ),
]


@pytest.mark.rule("REL-36", "HK-10")
@pytest.mark.parametrize("left", LEFT_OVER)
async def test_what_the_next_start_deletes_is_told_and_is_no_damage(
    open_store, rows, look, path, *, capsys, left
):
    store = await open_store()
    await converse(store, rows)
    await store.close()
    statement, where = left
    look.change(statement)
    told = [(one.table, one.where) for one in look.findings() if one.is_left_over]
    assert told == [("transmission_queue", where)]
    assert [one for one in look.findings() if not one.is_left_over] == []
    if path.exists():
        assert main(["store", "verify", str(path)]) == 0
        assert "nothing is wrong; the next start deletes" in capsys.readouterr().out


@pytest.mark.rule("HK-10")
async def test_a_full_list_ends(store, rows, look):
    endpoint = rows.endpoint(store, receive_sequence=2 * MOST)
    changes = Changes()
    changes.create(endpoint)
    queue = await a_queue(store)
    numbers = range(2 * MOST)
    changes.enqueued += [rows.message(store, endpoint, n, b"", queue=queue) for n in numbers]
    await store.commit(changes)
    look.change("UPDATE queue_messages SET body_hash = x'00'")
    assert len(look.findings()) == MOST


@pytest.mark.rule("BI-D1", "BI-D4")
def test_what_is_no_store_is_refused(path):
    path.write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(StoreDamaged, match="another application"):
        verify(path)


@pytest.mark.of_files("the command reads a file")
@pytest.mark.rule("HK-10")
async def test_the_command_says_what_is_wrong(open_store, rows, look, path, capsys):
    store = await open_store()
    await converse(store, rows)
    await store.close()
    assert main(["store", "verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: nothing is wrong\n"
    record = head_path(path).read_bytes()
    head_path(path).unlink()
    assert main(["store", "verify", str(path)]) == 0
    assert "but something may be missing" in capsys.readouterr().out
    head_path(path).write_bytes(record)
    look.change("UPDATE queue_messages SET queue_key = 99 WHERE sequence = 0")
    assert main(["store", "verify", str(path)]) == 65
    said = capsys.readouterr()
    assert "queue_messages: queuing_order 1, queue_key 99: is in a queue that does" in said.out
    assert "1 thing in it cannot be" in said.err
    assert main(["store", "verify", "--json", str(path)]) == 65
    (one,) = json.loads(capsys.readouterr().out)["rows"]
    assert one["problem"] == "is in a queue that does not exist"


def spoil(path, where):
    """Overwrite a part of the file, behind the back of everybody."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        name = {"a table": "queue_messages", "an index": "queue_messages_of"}.get(where, "")
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (page,) = connection.execute(query, (name,)).fetchone() or (1,)
    with path.open("r+b") as file:
        if where == "the header":
            file.write(bytes(16))
        elif where == "the list of free pages":  # its first page, and how many there are
            file.seek(32)
            file.write(b"\x00\x00\x00\x02\x00\x00\x00\x05")
        else:
            file.seek((page - 1) * size + (100 if page == 1 else 0))
            file.write(b"\xff" * 400)


@pytest.mark.of_files("it damages parts of a file")
@pytest.mark.rule("BI-D2", "REL-6", "FD-8")
@pytest.mark.parametrize(
    "where", ["the header", "the schema", "a table", "an index", "the list of free pages"]
)
async def test_damage_of_any_part_of_the_file_is_told_and_nothing_wrong_is_served(
    open_store, rows, path, where
):
    store = await open_store()
    await converse(store, rows)
    queue = store.catalog.queues["inbox"].key
    before = (await store.messages.page(queue, 5, -1, 9, 1000)).rows
    await store.close()
    spoil(path, where)
    kept = digest(path)
    try:
        found = [one.problem for one in verify(path)]
    except StoreDamaged as error:
        found = [error.message]
    assert found
    assert digest(path) == kept
    with suppress(StoreDamaged, StoreFault):
        again = await open_store(create=None)
        assert (await again.messages.page(queue, 5, -1, 9, 1000)).rows == before
