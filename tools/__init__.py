"""Programs of the Makefile: set-up, locks, rule report, wording; brokerd never imports them."""
