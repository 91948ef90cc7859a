"""Dynamic routing: where no route is found, a service that may make one is asked (BCN)."""
