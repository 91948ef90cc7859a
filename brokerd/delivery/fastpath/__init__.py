"""Fast path: ordinary messages skip the steps that they do not need.

A message is ordinary if `broker.ordinary` says so; every other one takes the general path (`verbs`,
`broker.changeset`, `delivery.incoming`). Contract: a fast path decides nothing. It does exactly
what the general path would have done, or it does nothing and says so. `instance.fast_paths = false`
(`BrokerOptions.fast_paths`) switches all of them off; `tests/model/test_fast_path.py` plays random
programs on both paths.

Modules, with the factor by which each shortens the event loop's time per message:

    rows            writes rows directly into the gathering flush; the other three use it
    sends           transactions that only send: 5.0 for one message, 1.5 for a hundred
    short_dialogs   dialogs that are begun, sent on and ended in one transaction: 8.5
    arrivals        whole messages of a peer, in order: 1.6 if each belongs to another dialog, 1.0
                    if four in a row belong to one, 0.9 if sixteen do: the general path stores such
                    a run in one step

Inside the general path are labelled branches (`# fast path`): `verbs.sends.send_ordinary` and
`verbs.ends.end_ordinary` at the beginning of their verbs, `hand_over_ordinary` and `close_ordinary`
of the changeset. `sessions.fast_requests` reads the requests for all of these. How the factors were
measured: docs/internals/performance.md, "Fast paths".
"""
