"""Peer traffic: the requests and reports of the transport, passed to the parts concerned.

Reads:  the record of parts.      Calls: forwarder, dispatcher, transmitter, peers' parts.
Never:  decides where an item goes (the router does), or keeps an item.
"""

from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.ids import BrokerId, InstanceId
from brokerd.instance.changes import Changes
from brokerd.instance.parts import Parts
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.certificate_lists import CertificatesHere, CertificatesKept
from brokerd.protocol.frames import Fragment, Item, encode_item
from brokerd.protocol.neighbour import Advice, Notice
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.protocol.trace import Trace
from brokerd.transport.meeting import Arrival


class PeerTraffic:
    """The listener of the transport, and the sender of traffic that belongs to no dialog."""

    def __init__(self, parts: Parts, *, instance: str, changes: Changes) -> None:
        """Create the listener. `instance`: this instance's name, for reports to other machines."""
        self._parts = parts
        self._instance = instance
        self._changes = changes

    # Events of the transport.

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        """Return the next items for an address, as many as fit into the room."""
        return self._parts.boxcars.fill(address, room_bytes, room_items)

    def boxcar_arrived(self, arrival: Arrival) -> None:
        """Forward the items for other instances, and give the others to the dispatcher."""
        parts = self._parts
        for broker in parts.brokers.values():
            broker.store.breathe()
        items = arrival.items
        if parts.forwarder.forwarding:
            items = parts.forwarder.accept(items, arrival.headers, arrival.peer)
        parts.dispatcher.arrived(items, arrival.peer)

    def notice_arrived(self, neighbour: InstanceId, notice: Advice) -> None:
        """Process a neighbour's notice; show a refusal to the sender of the message (NBT-4)."""
        parts = self._parts
        match notice:
            case Trace():
                parts.pinging.process(neighbour, notice)
            case RoleQuestion():
                parts.destinations.notice(neighbour, parts.mirroring.answer(notice))
            case RoleAnswer():
                parts.mirrors.record_role(parts.destinations.addresses_of(neighbour), notice)
            case BrokersHere():
                parts.duplicate_brokers.record_list(neighbour, notice)
            case CertificatesHere() | CertificatesKept():
                parts.certificate_exchange.arrived(neighbour, notice)
            case Notice():
                if not parts.refusal_notices.apply(notice):
                    parts.forwarder.pass_notice(notice)

    def address_changed(self, address: str, online: bool) -> None:
        """Queue the dialogs of an address that came ONLINE or was lost (DLP-29)."""
        parts = self._parts
        parts.transmitter.changed(address, online)
        if online:
            parts.forwarder.came_online(address)
            parts.pinging.came_online(address)
            parts.mirrors.came_online(address)
            # held until it was known which brokers are at that address
            if held := parts.duplicate_brokers.are_held_at(address):
                self._changes.duplicates_changed(held)
        elif parts.destinations.is_suppressed(address):
            # lost; an orderly end suppresses nothing (TRN-18)
            parts.mirrors.lost(address)

    def reached_self(self, address: str) -> None:
        """Route items for an address that leads back to this instance as arrivals (RTE-41)."""
        self._changes.own_addresses_changed()
        self._parts.transmitter.reclassification.move_away(address)

    def neighbour_met(self, peer: InstanceId) -> None:
        """Exchange lists of brokers and certificates with a neighbour that came ONLINE."""
        self._parts.duplicate_brokers.came_online(peer)
        self._parts.certificate_exchange.met(peer)

    def neighbour_left(self, peer: InstanceId) -> None:
        """Note that no connection leads to a neighbour any longer."""
        self._parts.duplicate_brokers.left(peer)

    def before_closing(self) -> None:
        """Send owed acknowledgements while connections drain (DLP-19)."""
        self._parts.transmitter.send_owed_acks()

    # Items and errors that the parts send to each other.

    def deliver_here(self, items: list[Item]) -> None:
        """Deliver items between brokers of this instance."""
        # after the stop, repeats of the transmitter no longer have a receiver
        if self._parts.tasks.condition != "stopped":
            self._parts.dispatcher.arrived(items)

    def hand_back(self, neighbour: InstanceId, items: list[Item]) -> bool:
        """Send items over a neighbour's open connection (NBT-1).

        False: the neighbour is not ONLINE, or its socket has no room."""
        encoded = [encode_item(item) for item in items]
        return self._parts.destinations.hand_back(neighbour, encoded)

    def refuse_forwarding(self, item: Fragment, reason: str, neighbour: InstanceId) -> None:
        """Send a neighbour the reason why its item was not forwarded."""
        detail = f"forwarder {self._own_address()}"
        self._parts.refusal_notices.refuse(item, reason, neighbour, detail)

    def _own_address(self) -> str:
        known = [one.address for one in self._parts.destinations.listeners if one.address]
        return " at ".join((self._instance, *known[:1]))

    def send_error(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """Send an error that arose here to the far side of a dialog (DLP-42)."""
        if live.gone:
            self._parts.orphan_replies.send_error(broker, live.endpoint, code, text)
        else:
            self._parts.transmitter.refuse(broker, broker.outgoing(live), code, text)

    def broker_name(self, broker_id: BrokerId) -> str:
        """Return the name of the broker that delivers under this id here; empty = none."""
        those = (one for one in self._parts.brokers.values() if one.enabled)
        return next((one.name for one in those if one.broker_id == broker_id), "")
