"""Flushes that reach a server as one statement."""

from brokerd.storage.postgresql.one_statement import MOST, at_once
from brokerd.storage.statements import Deletes, Inserts, Script
from brokerd.storage.tables import clients, dialog_log, endpoint_progress, transmission_queue

FENCE = "UPDATE store SET next_endpoint_key = ? WHERE id = ? AND epoch = ?"
PROGRESS = Inserts(endpoint_progress, replace=True)
LINES = Inserts(dialog_log)
FORGOTTEN = Deletes(clients.c.client_id)
SENT = Inserts(transmission_queue)
ACKNOWLEDGED = Deletes(transmission_queue.c.transmission_order)
OUTGOING = (7, 1, 1, 0, "kind", 100, 0, 1, b"m", None, b"body")


def fenced() -> Script:
    script = Script()
    script.fence(FENCE, (5, 1, 3))
    return script


def test_the_fence_and_all_parts_are_one_statement():
    script = fenced()
    PROGRESS.add(script, [(1, 2, 3, 0, None), (2, 2, 3, 0, b"m")])
    FORGOTTEN.add(script, [b"client"])
    found = at_once(script)
    assert found is not None
    text, values = found
    assert text.startswith(f"WITH fence_ AS ({FENCE} RETURNING 1), part0_ AS (INSERT INTO ")
    assert "), part1_ AS (DELETE FROM clients WHERE client_id IN (?))" in text
    assert text.endswith(" SELECT 1 / count(*) FROM fence_")
    assert values[:3] == [5, 1, 3]
    assert values[3:] == [[1, 2], [2, 2], [3, 3], [0, 0], [None, b"m"], b"client"]
    assert text.count("?") == len(values)


def test_a_script_without_a_fence_stays_a_script():
    script = Script()
    LINES.add(script, [(1, b"line")])
    assert at_once(script) is None


def test_two_parts_of_one_table_keep_their_order():
    script = fenced()
    Deletes(endpoint_progress.c.endpoint_key).add(script, [1])
    PROGRESS.add(script, [(1, 2, 3, 0, None)])
    assert at_once(script) is None


def test_messages_that_are_sent_and_acknowledged_in_one_flush_are_different_ones():
    script = fenced()
    SENT.add(script, [OUTGOING])
    ACKNOWLEDGED.add(script, [3, 4])
    assert at_once(script) is not None
    ACKNOWLEDGED.add(script, [5])
    assert at_once(script) is None


def test_a_part_that_looks_at_other_rows_keeps_its_place():
    script = fenced()
    script.add("DELETE FROM clients WHERE client_id IN (SELECT x FROM y WHERE z = ?)", (1,))
    assert at_once(script) is None


def test_a_part_of_several_statements_or_of_very_many_rows_is_no_part_of_one():
    script = fenced()
    script.add("UPDATE clients SET used_at = ? WHERE client_id = ?", (1, b"a"), (2, b"b"))
    assert at_once(script) is None
    script = fenced()
    LINES.add(script, [(key, b"line") for key in range(MOST)])
    assert at_once(script) is None
