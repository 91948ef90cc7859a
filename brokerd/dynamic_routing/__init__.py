"""Dynamic routing: where no route is found, asks a service that may make one (BCN)."""
