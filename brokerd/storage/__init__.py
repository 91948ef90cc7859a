"""The store: the only SQL. The rest sees `store.Store` and `changes.Changes` (design D11)."""
