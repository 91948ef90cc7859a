"""The client's judgement of replies: right ones pass, and each kind of wrong one is named."""

from pathlib import Path

import orjson
import pytest

from brokerd.client.messages import ABSENT, Message
from brokerd.demo.dialogs import (
    LINE_LIMIT,
    FileLines,
    Orders,
    choose_files,
    digest_of,
    lines_of,
    order_dialogs,
)
from brokerd.demo.workers import chained
from brokerd.model import END_DIALOG, ERROR

NOWHERE = Path("/nowhere")


def reply(body: bytes, message_type: str = "OrderReply") -> Message:
    return Message(
        handle=b"h" * 16,
        conversation_id=b"c" * 16,
        group_id=b"g" * 16,
        sequence=0,
        message_type=message_type,
        body=body,
        service="shop",
        contract="orders/v1",
        queuing_order=1,
        priority=5,
        enqueued_at=0,
        delivery_count=0,
        message_id=b"m" * 16,
        validation="N",
    )


def answers(dialog: Orders) -> list[dict[str, object]]:
    """What a warehouse without faults says."""
    running = b""
    said: list[dict[str, object]] = []
    for chunk in dialog.chunks():
        dialog.judged.sent += len(chunk)
        for _, body in chunk:
            assert isinstance(body, bytes)
            running = chained(running, body)
            number = orjson.loads(body)["number"]
            said.append({"number": number, "count": len(said), "sha256": running.hex()})
    return said


def judged(said: list[dict[str, object]], dialog: Orders) -> Orders:
    for one in said:
        dialog.check(reply(orjson.dumps(one)))
    return dialog


def test_right_replies_pass() -> None:
    dialog = Orders(7, 20)
    judged(answers(dialog), dialog)
    assert (dialog.judged.sent, dialog.judged.answered) == (20, 20)
    assert (dialog.judged.lost, dialog.judged.doubled, dialog.judged.faults) == (0, 0, [])


def test_a_lost_reply_is_counted_and_named() -> None:
    dialog = Orders(7, 20)
    said = answers(dialog)
    judged(said[:4] + said[5:], dialog)
    assert dialog.judged.lost == 1
    assert dialog.judged.faults == ["dialog 7: the reply to order 5 came where order 4 was due"]


def test_a_doubled_reply_is_counted_and_named() -> None:
    dialog = Orders(7, 20)
    said = answers(dialog)
    judged([*said[:5], said[4], *said[5:]], dialog)
    assert (dialog.judged.lost, dialog.judged.doubled) == (0, 1)
    assert dialog.judged.faults == ["dialog 7: order 4 was answered again"]


def test_an_order_processed_twice_shows_in_count_or_hash() -> None:
    dialog = Orders(7, 3)
    said = answers(dialog)
    said[2] |= {"count": 3}
    judged(said, dialog)
    assert dialog.judged.faults == ["dialog 7: order 2 was processed as the 3th"]
    again = Orders(7, 3)
    said = answers(again)
    said[2] |= {"sha256": chained(bytes.fromhex(str(said[2]["sha256"])), b"").hex()}
    judged(said, again)
    assert again.judged.faults == ["dialog 7: the hash of the orders up to 2 differs"]


def test_an_answer_to_what_was_never_sent_is_named() -> None:
    dialog = judged([{"number": 3, "count": 3, "sha256": ""}], Orders(7, 3))
    assert dialog.judged.faults == ["dialog 7: a reply to order 3 came, which was never sent"]


@pytest.mark.parametrize("message_type", [END_DIALOG, ERROR])
def test_an_end_from_the_far_side_is_a_fault(message_type: str, tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"")
    for dialog in (Orders(1, 2), FileLines(path, 0.0)):
        dialog.check(reply(b"", message_type))
        assert "ended from the far side" in dialog.judged.faults[0]


def test_orders_are_not_sent_without_end_before_replies_come() -> None:
    dialog = Orders(1, 100)
    sent = 0
    for chunk in dialog.chunks():
        if not dialog.room(chunk):
            break
        sent += len(chunk)
        dialog.judged.sent = sent
    assert 0 < sent < 20


@pytest.mark.parametrize(("dialogs", "orders"), [(1, 1), (500, 20_000), (50, 50), (7, 1000)])
def test_dialogs_share_all_orders(dialogs: int, orders: int) -> None:
    shares = [dialog.replies for dialog in order_dialogs(dialogs, orders)]
    assert (len(shares), sum(shares)) == (dialogs, orders)
    assert min(shares) >= 1


def test_a_file_travels_whole_in_lines_of_bounded_length(tmp_path: Path) -> None:
    content = b"one\n\ntwo\n" + b"x" * (2 * LINE_LIMIT + 5) + b"\nno end"
    path = tmp_path / "file"
    path.write_bytes(content)
    sendings = [sending for chunk in FileLines(path, 0.0).chunks() for sending in chunk]
    assert sendings[-1] == ("FileEnd", ABSENT)
    bodies = [body for kind, body in sendings if kind == "Line" and isinstance(body, bytes)]
    assert b"".join(bodies) == content
    assert max(map(len, bodies)) == LINE_LIMIT
    assert len(sendings) == len(bodies) + 1 == len(list(lines_of(path))) + 1


def test_a_file_is_right_if_lines_and_hash_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    lines, digest = digest_of(path)
    assert lines == 2
    right = FileLines(path, 0.0)
    right.judged.sent = 3
    right.check(reply(orjson.dumps({"lines": 2, "sha256": digest}), "FileDigest"))
    assert (right.judged.answered, right.judged.faults) == (3, [])
    right.check(reply(orjson.dumps({"lines": 2, "sha256": digest}), "FileDigest"))
    assert right.judged.doubled == 1
    wrong = FileLines(path, 0.0)
    wrong.check(reply(orjson.dumps({"lines": 2, "sha256": "00"}), "FileDigest"))
    assert wrong.judged.faults == [f"{path}: its hash differs"]
    few = FileLines(path, 0.0)
    path.write_bytes(b"one\ntwo\nthree\n")
    few.check(reply(orjson.dumps({"lines": 2, "sha256": digest}), "FileDigest"))
    assert few.judged.faults == [
        f"{path}: it has 3 lines, of which 2 were added up; the file was changed meanwhile"
    ]


def test_files_are_chosen_by_name_up_to_the_limits(tmp_path: Path) -> None:
    for name in ("a/1.py", "a/2.py", "b/3.txt", "c.py", "own/x.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"line\n" * 10)
    (tmp_path / "link.py").symlink_to(tmp_path / "c.py")
    (tmp_path / "around").symlink_to(tmp_path)

    def names(pattern: str, files: int | None = None, lines: int | None = None) -> list[str]:
        chosen = choose_files(
            tmp_path, pattern=pattern, limit_files=files, limit_lines=lines, but=tmp_path / "own"
        )
        assert chosen.messages == 11 * len(chosen.files)
        assert [before for _, before in chosen.files] == [*range(0, chosen.messages, 11)]
        return [str(path.relative_to(tmp_path)) for path, _ in chosen.files]

    assert names("*") == ["a/1.py", "a/2.py", "b/3.txt", "c.py"]
    assert names("*.py") == ["a/1.py", "a/2.py", "c.py"]
    assert names("*.py", files=2) == ["a/1.py", "a/2.py"]
    assert names("*", lines=10) == ["a/1.py"]
    assert names("*", lines=11) == ["a/1.py", "a/2.py"]


def test_what_is_sent_before_a_gate_is_at_least_its_share() -> None:
    for dialogs, orders in ((1, 1), (3, 100), (50, 2000)):
        sent = 0
        for dialog in order_dialogs(dialogs, orders):
            for chunk in dialog.chunks():
                if dialog.due >= 0.5:
                    break
                dialog.judged.sent += len(chunk)
            sent += dialog.judged.sent
        assert sent >= orders / 2
