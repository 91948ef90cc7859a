"""A daemon with two brokers that starts again: nobody answers for a broker not looked at yet.

With real processes: the one of the two that is recovered first must have time to send.
"""

import signal
from pathlib import Path

import pytest

import brokerd
from tests.acceptance.serving import Place

OBJECTS = """
[[broker]]
name = "main"
default_encryption = "off"
[[broker.queue]]
name = "shop_q"
[[broker.service]]
name = "shop"
queue = "shop_q"
[[broker]]
name = "two"
default_encryption = "off"
[[broker.queue]]
name = "far_q"
[[broker.service]]
name = "far"
queue = "far_q"
contracts = ["DEFAULT"]
"""


class Undeclared(Place):
    """A daemon that is started with its stores alone."""

    def serve_command(self) -> list[str]:
        return super().serve_command()[:-2]


@pytest.mark.rule("MAN-12", "SND-18")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_waits_from_one_to_the_other_arrives(tmp_path: Path, how: signal.Signals) -> None:
    place = Place(tmp_path / "p")
    place.objects.write_text(OBJECTS)
    with place.serving() as daemon:
        with brokerd.sync.connect(place.address, broker="main") as main:
            dialog = main.begin_dialog("shop", "far")
            main.send(dialog, b"0")
            with brokerd.sync.connect(place.address, broker="two") as two:
                with two.transaction() as tx:
                    (first,) = tx.receive("far_q", wait=30)
                two.alter("queue", "far_q", status="off")
            for number in (b"1", b"2", b"3"):
                main.send(dialog, number)
        daemon.send_signal(how)
        daemon.wait(30)
    again = Undeclared(place.folder)
    again.port = place.port
    again.write()
    with again.serving(), brokerd.sync.connect(place.address, broker="two") as two:
        two.alter("queue", "far_q", status="on")
        got: list[bytes | None] = []
        while len(got) < 3:
            with two.transaction() as tx:
                messages = tx.receive("far_q", wait=30)
            assert {one.handle for one in messages} == {first.handle}
            got += [one.body for one in messages]
        assert got == [b"1", b"2", b"3"]
