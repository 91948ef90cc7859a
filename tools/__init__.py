"""What the Makefile calls: set-up, locks, the rule report. Never imported by brokerd itself."""
