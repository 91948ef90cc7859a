"""Tools for brokerd's tests and yours: virtual time, breakable network, histories, checker."""
