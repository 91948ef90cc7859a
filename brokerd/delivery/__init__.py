"""Delivery of messages between brokers: outgoing, incoming, forwarded, and the fast path."""
