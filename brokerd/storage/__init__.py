"""The store of one broker: its file, everything that is read from it, and all SQL (design D11).

Other packages use `store.Store` and `changes.Changes`. The way of a commit, with its modules:

    changes          what one transaction changes, as rows
       |  Store.join
    commits          gathers changesets; one flush is written at a time
       |               deletions: what the flush deletes itself, and what is deleted after it
    flush            merges the changesets into one script
       |               dialogs, queues, transmission, timers, ...: the statements of each table
    writers          runs the script on the one connection that writes: BEGIN, COMMIT, one sync
       |               log_head: how far the log was confirmed, recorded beside the file
    confirmations    calls the waiters, in the order of joining

Reads go to other connections, which only query: `readers` (on or off the loop, chosen by
`executors`), `paging`, then what `Store` offers: `dialogs`, `stored_messages`, `message_counts`,
`incomplete_messages`, `listings`. The file as a whole: `file_checks`, `schema`, `opening`,
`recovery`, `backup`, `verifying`. Its tables: `tables`, `shelves` and `stretches`. The contract
"Storage" in pyproject.toml has the floors.
"""
