"""Each property of the checker refuses bad histories and accepts their good twins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.testing.check import CLEAN, UNUSABLE, VIOLATED, check, main
from brokerd.testing.evidence import Stored
from brokerd.testing.history import Event, History, HistoryUnusable, Kind, merge, show

INVOKE, OK, FAIL, INFO = Kind.INVOKE, Kind.OK, Kind.FAIL, Kind.INFO
Script = Callable[["Story"], None]


class Story:
    """A hand-made history: transactions of clients, told in the order in which they are written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(self._tick, node="east")

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def send(self, client: str, tx: int, *uids: str, dialog: str = "d", **more: object) -> None:
        for uid in uids:
            fields = {"dialog": dialog, "side": "initiator", "hash": f"h-{uid}", **more}
            self.history.add("send", INVOKE, client=client, tx=tx, uid=uid, **fields)  # type: ignore[arg-type]

    def ask(self, client: str, tx: int) -> None:
        self.history.add("receive", INVOKE, client=client, tx=tx, queue="q")

    def got(self, client: str, tx: int, *uids: str, dialog: str = "d", **more: object) -> None:
        for uid in uids:
            fields = {"dialog": dialog, "side": "target", "hash": f"h-{uid}", **more}
            self.history.add("receive", OK, client=client, tx=tx, uid=uid, **fields)  # type: ignore[arg-type]

    def receive(self, client: str, tx: int, *uids: str, **more: object) -> None:
        self.ask(client, tx)
        self.got(client, tx, *uids, **more)  # type: ignore[arg-type]

    def commit(self, client: str, tx: int, answer: Kind | None = OK) -> None:
        self.history.add("commit", INVOKE, client=client, tx=tx, token=tx)
        if answer is not None:
            self.history.add("commit", answer, client=client, tx=tx, token=tx)

    def rollback(self, client: str, tx: int) -> None:
        self.history.add("rollback", INVOKE, client=client, tx=tx)
        self.history.add("rollback", OK, client=client, tx=tx)

    def sent(self, client: str, tx: int, *uids: str, **more: object) -> None:
        self.send(client, tx, *uids, **more)  # type: ignore[arg-type]
        self.commit(client, tx)

    def taken(self, client: str, tx: int, *uids: str, **more: object) -> None:
        self.receive(client, tx, *uids, **more)
        self.commit(client, tx)


def told(script: Script) -> tuple[Event, ...]:
    story = Story()
    script(story)
    return story.history.events


def rules(script: Script, stores: list[Stored] | None = None) -> set[str]:
    return {found.rule for found in check(told(script), stores)}


def ordinary(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.taken("b", 1, "m0")
    s.receive("b", 2, "m1")
    s.rollback("b", 2)
    s.taken("b", 3, "m1")


@pytest.mark.rule("CHK-1", "CHK-2", "CHK-3", "CHK-4", "CHK-5")
@pytest.mark.parametrize("stores", [None, []])
def test_an_ordinary_history_is_clean(stores: list[Stored] | None) -> None:
    assert check(told(ordinary), stores) == []


# CHK-1.


def never_sent(s: Story) -> None:
    s.taken("b", 1, "m0")


def sender_failed(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, FAIL)
    s.taken("b", 1, "m0")


def sender_rolled_back_yet_receiver_too(s: Story) -> None:
    s.send("a", 1, "m0")
    s.rollback("a", 1)
    s.receive("b", 1, "m0")
    s.rollback("b", 1)


def sender_never_asked_to_commit(s: Story) -> None:
    s.send("a", 1, "m0")
    s.taken("b", 1, "m0")


def refused_send_arrived(s: Story) -> None:
    s.send("a", 1, "m0")
    s.history.add("send", FAIL, client="a", tx=1, uid="m0")
    s.commit("a", 1)
    s.taken("b", 1, "m0")


def body_changed(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0", hash="other")


def wrong_dialog(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0", dialog="e")


def came_back_to_its_sender(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0", side="initiator")


@pytest.mark.rule("CHK-1")
@pytest.mark.parametrize(
    "script",
    [
        never_sent,
        sender_failed,
        sender_rolled_back_yet_receiver_too,
        sender_never_asked_to_commit,
        refused_send_arrived,
        body_changed,
        wrong_dialog,
        came_back_to_its_sender,
    ],
)
def test_phantoms_are_refused(script: Script) -> None:
    assert "CHK-1" in rules(script)


def sender_unknown(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, INFO)
    s.taken("b", 1, "m0")


def sender_silent(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, None)
    s.taken("b", 1, "m0")


def hash_not_recorded(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0", hash=None)


def failed_and_unseen(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, FAIL)
    s.sent("a", 2, "m1")
    s.taken("b", 1, "m1")


@pytest.mark.rule("CHK-1")
@pytest.mark.parametrize(
    "script", [sender_unknown, sender_silent, hash_not_recorded, failed_and_unseen]
)
def test_what_may_have_been_sent_is_no_phantom(script: Script) -> None:
    assert rules(script, []) == set()


# CHK-2.


def sent_only(s: Story) -> None:
    s.sent("a", 1, "m0")


def taken_by_failed(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.commit("b", 1, FAIL)


def taken_by_unknown(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.commit("b", 1, INFO)


def unknown_that_failed_loses_the_other(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.receive("b", 1, "m0", "m1")
    s.commit("b", 1, INFO)
    s.taken("b", 2, "m0")


def unknown_commit_unseen(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, INFO)


@pytest.mark.rule("CHK-2")
@pytest.mark.parametrize(
    "script", [sent_only, taken_by_failed, unknown_that_failed_loses_the_other]
)
def test_a_committed_send_that_is_nowhere_is_lost(script: Script) -> None:
    assert "CHK-2" in rules(script, [])


@pytest.mark.rule("CHK-2")
@pytest.mark.parametrize("script", [taken_by_unknown, unknown_commit_unseen])
def test_what_an_unknown_outcome_explains_is_not_lost(script: Script) -> None:
    assert rules(script, []) == set()


@pytest.mark.rule("CHK-2")
@pytest.mark.parametrize(
    ("stored", "lost"),
    [
        (Stored("east", queued=("m0",)), False),
        (Stored("east", transmission=("m0",)), False),
        (Stored("east", accounted=(("m0", "expired"),)), False),
        (Stored("east", accounted=(("m0", ""),)), True),
        (Stored("east", queued=("m9",)), True),
    ],
)
def test_stored_or_accounted_with_a_reason_is_not_lost(stored: Stored, lost: bool) -> None:
    assert ("CHK-2" in rules(sent_only, [stored])) is lost


@pytest.mark.rule("CHK-2")
def test_accounts_come_from_history_and_caller_too() -> None:
    def accounted(s: Story) -> None:
        sent_only(s)
        s.history.add("account", OK, uid="m0", reason="expired")

    assert rules(accounted, []) == set()
    assert check(told(sent_only), [], [("m0", "expired")]) == []


@pytest.mark.rule("CHK-2")
def test_without_stores_the_tail_is_not_judged() -> None:
    assert rules(sent_only) == set()


@pytest.mark.rule("CHK-2")
@pytest.mark.parametrize(
    ("arrived", "part"),
    [
        (["m1", "m2"], "before what"),
        (["m0", "m2"], "between what"),
        (["m0", "m1"], "after what"),
        ([], "nothing of this direction"),
    ],
)
def test_the_loss_says_where(arrived: list[str], part: str) -> None:
    def script(s: Story) -> None:
        s.sent("a", 1, "m0", "m1", "m2")
        if arrived:
            s.taken("b", 1, *arrived)

    first = next(found for found in check(told(script), []) if found.rule == "CHK-2")
    assert part in first.text
    assert [event.op for event in first.excerpt] == ["send", "commit", "commit"]


@pytest.mark.rule("CHK-2")
def test_a_receive_nobody_recorded_makes_the_history_unusable() -> None:
    def script(s: Story) -> None:
        s.sent("a", 1, "m0")
        s.ask("b", 1)
        s.commit("b", 1, INFO)

    with pytest.raises(HistoryUnusable, match="answer"):
        check(told(script), [])
    assert check(told(script), [Stored("west", queued=("m0",))]) == []


# CHK-3.


def taken_twice(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0")
    s.taken("c", 1, "m0")


def taken_twice_in_one(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0", "m0")


def unknown_proved_by_its_send_then_taken_again(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.send("b", 1, "r0", dialog="e")
    s.commit("b", 1, INFO)
    s.taken("c", 1, "r0", dialog="e")
    s.taken("b", 2, "m0")


@pytest.mark.rule("CHK-3")
@pytest.mark.parametrize(
    "script", [taken_twice, taken_twice_in_one, unknown_proved_by_its_send_then_taken_again]
)
def test_duplicates_are_refused(script: Script) -> None:
    assert "CHK-3" in rules(script, [])


def taken_again_after_rollback(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.rollback("b", 1)
    s.taken("c", 1, "m0")


def taken_again_after_unknown(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.commit("b", 1, INFO)
    s.taken("c", 1, "m0")


def told_by_two_recorders(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.got("b", 1, "m0", node="sdk")
    s.commit("b", 1)


@pytest.mark.rule("CHK-3")
@pytest.mark.parametrize(
    "script", [taken_again_after_rollback, taken_again_after_unknown, told_by_two_recorders]
)
def test_one_committed_receive_is_no_duplicate(script: Script) -> None:
    assert rules(script, []) == set()


# CHK-4.


def half_of_an_unknown(s: Story) -> None:
    s.send("a", 1, "m0", dialog="d")
    s.send("a", 1, "m1", dialog="e")
    s.commit("a", 1, INFO)
    s.taken("b", 1, "m0")


def sent_yet_not_received(s: Story) -> None:
    """Its reply was seen, and what it received was handed out again."""
    unknown_proved_by_its_send_then_taken_again(s)


def consumed_yet_not_sent(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.send("b", 1, "r0", dialog="e")
    s.commit("b", 1, INFO)


def failed_yet_stored(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, FAIL)


def answered_both_ways(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.history.add("commit", FAIL, client="a", tx=1)
    s.taken("b", 1, "m0")


def before_the_send(s: Story) -> None:
    s.receive("b", 1, "m0")
    s.sent("a", 1, "m0")
    s.commit("b", 1)


def before_the_commit(s: Story) -> None:
    s.send("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.commit("a", 1)
    s.commit("b", 1)


def handed_out_after_commit(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.taken("b", 1, "m0")
    s.receive("c", 1, "m0")
    s.rollback("c", 1)


def circle(s: Story) -> None:
    s.send("a", 1, "m0", dialog="d")
    s.send("b", 1, "m1", dialog="e")
    s.receive("a", 1, "m1", dialog="e")
    s.receive("b", 1, "m0", dialog="d")
    s.commit("a", 1)
    s.commit("b", 1)


def own_message(s: Story) -> None:
    s.send("a", 1, "m0")
    s.receive("a", 1, "m0")
    s.commit("a", 1)


@pytest.mark.rule("CHK-4")
@pytest.mark.parametrize(
    "script",
    [
        half_of_an_unknown,
        sent_yet_not_received,
        consumed_yet_not_sent,
        answered_both_ways,
        before_the_send,
        before_the_commit,
        handed_out_after_commit,
        circle,
        own_message,
    ],
)
def test_transactions_in_part_or_out_of_time_are_refused(script: Script) -> None:
    assert "CHK-4" in rules(script, [])


@pytest.mark.rule("CHK-4")
@pytest.mark.parametrize(
    ("script", "stored"),
    [
        (failed_yet_stored, Stored("east", transmission=("m0",))),
        (failed_yet_stored, Stored("east", accounted=(("m0", "expired"),))),
        (ordinary, Stored("west", queued=("m1",))),
    ],
)
def test_stores_convict_too(script: Script, stored: Stored) -> None:
    assert "CHK-4" in rules(script, [stored])


@pytest.mark.rule("CHK-4")
def test_the_circle_is_named_beside_the_early_receives() -> None:
    texts = [found.text for found in check(told(circle), []) if found.rule == "CHK-4"]
    assert any("circle" in text for text in texts)


def whole_unknown(s: Story) -> None:
    s.send("a", 1, "m0", dialog="d")
    s.send("a", 1, "m1", dialog="e")
    s.commit("a", 1, INFO)
    s.taken("b", 1, "m0")
    s.taken("b", 2, "m1", dialog="e")


def chain_unknown_committed(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.send("b", 1, "r0", dialog="e")
    s.commit("b", 1, INFO)
    s.taken("c", 1, "r0", dialog="e")


def chain_unknown_failed(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.receive("b", 1, "m0")
    s.send("b", 1, "r0", dialog="e")
    s.commit("b", 1, INFO)
    s.receive("b", 2, "m0")
    s.send("b", 2, "r1", dialog="e")
    s.commit("b", 2)
    s.taken("c", 1, "r1", dialog="e")


def unknown_then_learned(s: Story) -> None:
    s.send("a", 1, "m0")
    s.commit("a", 1, INFO)
    s.history.add("commit", OK, client="a", tx=1)
    s.taken("b", 1, "m0")


@pytest.mark.rule("CHK-4")
@pytest.mark.parametrize(
    "script",
    [whole_unknown, chain_unknown_committed, chain_unknown_failed, unknown_then_learned],
)
def test_whole_transactions_are_accepted(script: Script) -> None:
    assert rules(script, []) == set()


@pytest.mark.rule("CHK-4")
def test_a_failed_transaction_that_left_nothing_is_accepted() -> None:
    assert rules(failed_yet_stored, []) == set()


# CHK-5.


def swapped_in_one(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.taken("b", 1, "m1", "m0")


def swapped_between_two(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.sent("a", 2, "m1")
    s.taken("b", 1, "m1")
    s.taken("c", 1, "m0")


def swapped_by_number(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.sent("a", 2, "m1")
    s.taken("b", 1, "m1", seq=1)
    s.taken("c", 1, "m0", seq=0)


def given_before_the_first_was_consumed(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.receive("b", 1, "m0")
    s.receive("c", 1, "m1")
    s.commit("b", 1)
    s.commit("c", 1)


def numbered_against_the_sends(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.sent("a", 2, "m1")
    s.taken("b", 1, "m1", seq=0)
    s.taken("b", 2, "m0", seq=1)


def numbered_against_one_transaction(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.taken("b", 1, "m1", seq=0)
    s.taken("b", 2, "m0", seq=1)


def one_number_twice(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.taken("b", 1, "m0", "m1", seq=0)


def skipped(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.sent("a", 2, "m1")
    s.taken("b", 1, "m1")


def skipped_in_one(s: Story) -> None:
    s.sent("a", 1, "m0", "m1", "m2")
    s.taken("b", 1, "m0", "m2")


@pytest.mark.rule("CHK-5")
@pytest.mark.parametrize(
    "script",
    [
        swapped_in_one,
        swapped_between_two,
        swapped_by_number,
        given_before_the_first_was_consumed,
        numbered_against_the_sends,
        numbered_against_one_transaction,
        one_number_twice,
        skipped,
        skipped_in_one,
    ],
)
def test_disorder_and_gaps_are_refused(script: Script) -> None:
    assert "CHK-5" in rules(script)


@pytest.mark.rule("CHK-5")
def test_a_gap_is_one_even_if_the_message_is_still_stored() -> None:
    assert rules(skipped, [Stored("west", queued=("m0",))]) == {"CHK-5"}


def two_dialogs(s: Story) -> None:
    s.sent("a", 1, "m0", dialog="d")
    s.sent("a", 2, "m1", dialog="e")
    s.taken("b", 1, "m1", dialog="e")
    s.taken("b", 2, "m0", dialog="d")


def two_directions(s: Story) -> None:
    s.sent("a", 1, "m0")
    s.sent("b", 1, "m1", side="target")
    s.taken("a", 2, "m1", side="initiator")
    s.taken("b", 2, "m0")


def sends_at_the_same_time(s: Story) -> None:
    s.send("a", 1, "m0")
    s.send("c", 1, "m1")
    s.commit("a", 1)
    s.commit("c", 1)
    s.taken("b", 1, "m1")
    s.taken("b", 2, "m0")


def prefix_only(s: Story) -> None:
    s.sent("a", 1, "m0", "m1", "m2")
    s.taken("b", 1, "m0", "m1")


def first_taken_by_unknown(s: Story) -> None:
    s.sent("a", 1, "m0", "m1")
    s.receive("b", 1, "m0")
    s.commit("b", 1, INFO)
    s.taken("b", 2, "m1")


@pytest.mark.rule("CHK-5")
@pytest.mark.parametrize(
    "script",
    [two_dialogs, two_directions, sends_at_the_same_time, prefix_only, first_taken_by_unknown],
)
def test_prefixes_in_order_are_accepted(script: Script) -> None:
    assert rules(script) == set()


# What cannot be judged.


@pytest.mark.rule("CHK-1")
def test_a_uid_sent_twice_is_unusable() -> None:
    def script(s: Story) -> None:
        s.sent("a", 1, "m0")
        s.sent("a", 2, "m0")

    with pytest.raises(HistoryUnusable, match="two transactions"):
        check(told(script))


@pytest.mark.rule("CHK-1")
@pytest.mark.parametrize(
    "fields", [{"op": "send", "tx": 1}, {"op": "send", "uid": "m0"}, {"op": "commit"}]
)
def test_missing_fields_are_unusable(fields: dict[str, object]) -> None:
    event = Event(i=0, t=0, kind=INVOKE, **fields)  # type: ignore[arg-type]
    with pytest.raises(HistoryUnusable, match="event 0"):
        check([event])


# The command.


def written(tmp_path: Path, script: Script) -> str:
    story = Story()
    script(story)
    path = tmp_path / "history.jsonl"
    story.history.write(path)
    return str(path)


@pytest.mark.rule("CHK-2")
def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path, sent_only)
    store = tmp_path / "east.json"
    store.write_text('{"store": "east", "queued": ["m0"]}')
    assert main([good]) == CLEAN
    assert main([good, "--store", str(store)]) == CLEAN
    assert capsys.readouterr().out == "3 events, 0 violations\n" * 2
    assert main([good, "--drained"]) == VIOLATED
    shown = capsys.readouterr().out
    assert shown.startswith("CHK-2: message m0 of dialog d from its initiator is lost")
    assert '"op":"send"' in shown
    assert main([good, "--store", str(tmp_path / "absent")]) == UNUSABLE
    store.write_text('{"store": "east", "rows": 1}')
    assert main([good, "--store", str(store)]) == UNUSABLE
    assert "unusable" in capsys.readouterr().err


@pytest.mark.rule("CHK-1")
def test_several_files_are_merged_by_time(tmp_path: Path) -> None:
    events = told(ordinary)
    files = []
    for name, client in (("b", "b"), ("a", "a")):
        path = tmp_path / name
        history = [event for event in events if event.client == client]
        path.write_text("".join(show(event) + "\n" for event in history))
        files.append(str(path))
    assert main([*files, "--drained"]) == CLEAN
    assert merge([events[4:], events[:4]]) == list(events)
