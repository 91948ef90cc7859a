"""Fast path: ordinary messages skip what they do not need."""
