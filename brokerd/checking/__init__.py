"""Checks of bodies outside the daemon: in a child process whose time and memory are limited."""
