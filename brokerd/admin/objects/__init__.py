"""Creating, altering and dropping objects on a running instance."""
