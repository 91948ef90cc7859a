"""The command line: one module for each command; it parses, calls and prints."""
