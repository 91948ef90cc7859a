"""The pure cores: values and bytes in, effects and bytes out; no clock, no socket, no store."""
