"""Messages on their way out: classification, turns, retransmission, boxcars."""
