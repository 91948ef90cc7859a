"""The doctor: checks of a running instance and of pairs of instances."""
