"""Declared objects: message types, contracts, services and queues, as files state them."""
