"""Administration: the commands and queries of operators to an instance.

`administration.py` receives every verb of administration from a client's session and passes it to
the module of its subject:

- objects: `objects/`, which plans, checks and applies a declaration;
- brokers: `broker_operations.py` (delivery, identity), `cleanup_and_backup.py`, `queue_drain.py`;
- dialogs and groups: `dialogs.py`, `poison.py`;
- the network: `broker_endpoint.py`, `route_queries.py` (explain a route, ping);
- observation: `views/`, and `metrics_rows.py` for the metrics log.

`doctor/` holds the checks of `brokerd doctor`, which run in the command line on rows of views; the
daemon does not call them. Calls go down from here to the broker, the delivery and the stores, which
never call the administration.
"""
