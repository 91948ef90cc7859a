"""One broker's live state between two commits; no sockets, no SQL."""
