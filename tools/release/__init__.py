"""Release: the files that users install, made from one tree, checked, and the same each time."""
