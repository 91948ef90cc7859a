"""Files: what lies beside a store, and who may touch it; none of it needs SQL.

`private_files` makes and opens files that only their user may read. `lock` keeps a store to one
process, `log_head`, `log_scan` and `log_check` show whether its log still has all that was
confirmed, `moved_files` whether it is still where it was opened.
"""
