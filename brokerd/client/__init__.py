"""The client library: knows the wire, never the store."""
