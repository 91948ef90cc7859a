"""Shipped for tests, ours and yours: virtual time, a breakable network, histories and a checker."""
