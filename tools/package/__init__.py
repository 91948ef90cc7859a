"""Package: the .deb of brokerd, with its man pages."""
