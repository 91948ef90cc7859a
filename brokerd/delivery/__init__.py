"""A message's way, in order of travel: verbs, transmitter, dispatcher."""
