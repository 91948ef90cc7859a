"""Outgoing messages: classification, order of sending, retransmission, acknowledgements."""
