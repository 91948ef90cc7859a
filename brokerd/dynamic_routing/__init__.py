"""Dynamic routing: requests missing routes from a service, which may create them (BCN)."""
