"""Declared objects: message types, contracts, queues, services and others, as files state them."""
