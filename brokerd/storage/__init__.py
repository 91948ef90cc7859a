"""The store: all SQL. Other packages use `store.Store` and `changes.Changes` (design D11)."""
