"""Checks of bodies outside of the daemon: in a child process whose time and memory are limited."""
