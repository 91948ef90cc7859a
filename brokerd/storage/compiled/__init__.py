"""Readers and writers of stores outside the interpreter: threads in C, and their Python side."""
