"""The store of one broker: its file, all reads from the file, and all SQL (design D11).

Other packages use `store.Store` and `changes.Changes`. A commit passes through these modules:

    changes          the changes of one transaction, as rows
       |  Store.join
    commits          gathers changesets; one flush is written at a time
       |               deletions: the rows that the flush deletes itself, and those deleted later
    flush            merges the changesets into one script
       |               rows/: the statements of each table
    writers          runs the script on the one connection that writes: BEGIN, COMMIT, one sync
       |               files/: how far the log was confirmed, recorded beside the file
    confirmations    calls the waiters, in the order of joining

Reads go to other connections, which only query: `readers` (on or off the loop, chosen by
`executors`), and their statements are in `rows/` as well. The file as a whole: `file_checks`,
`schema`, `opening`, `recovery`, `backup`, `verifying`, and `files/` for what lies beside it. Its
tables: `tables`, `shelves` and `stretches`. The second engine: `postgresql/`. The contract
"Storage" in pyproject.toml says which of these modules may import which.
"""
