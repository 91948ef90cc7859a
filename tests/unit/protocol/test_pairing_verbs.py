"""The verbs of pairing: which arguments they take."""

from typing import Any

import pytest

from brokerd.errors import BadRequest
from brokerd.protocol.client_verbs import parse_request
from brokerd.protocol.pairing_verbs import (
    LONGEST_WAIT,
    MOST_SHARES,
    AwaitPairing,
    CancelPairing,
    InvitePeer,
    JoinPeer,
    PairingOptions,
)


@pytest.mark.rule("CLP-150", "CLP-151", "CLP-152", "CLP-153")
@pytest.mark.parametrize(
    ("verb", "args", "parsed"),
    [
        ("invite_peer", [], InvitePeer()),
        (
            "invite_peer",
            [{"name": "west", "shares": ["orders"], "address": "tcp://w:1"}],
            InvitePeer(PairingOptions("west", ("orders",), "tcp://w:1")),
        ),
        ("await_pairing", [], AwaitPairing()),
        ("await_pairing", [3, 60], AwaitPairing(3, LONGEST_WAIT)),
        ("cancel_pairing", [], CancelPairing()),
        ("join_peer", ["CODE"], JoinPeer("CODE")),
        ("join_peer", ["CODE", {"name": None}], JoinPeer("CODE", PairingOptions())),
    ],
)
def test_arguments_are_read(verb: str, args: list[Any], parsed: object) -> None:
    assert parse_request(None, verb, args) == parsed


@pytest.mark.rule("CLP-150", "CLP-151", "CLP-152", "CLP-153", "CLP-6")
@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("invite_peer", ["west"]),
        ("invite_peer", [{"colour": 1}]),
        ("invite_peer", [{"shares": "orders"}]),
        ("invite_peer", [{"shares": ["s"] * (MOST_SHARES + 1)}]),
        ("await_pairing", [-1]),
        ("await_pairing", [0, 61]),
        ("cancel_pairing", [1]),
        ("join_peer", []),
        ("join_peer", [7]),
        ("join_peer", ["c" * 1025]),
    ],
)
def test_other_arguments_are_refused(verb: str, args: list[Any]) -> None:
    with pytest.raises(BadRequest, match=verb):
        parse_request(None, verb, args)
