"""What reads and writes stores beside the interpreter: threads in C, and who speaks to them."""
