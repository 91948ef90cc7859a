"""The morning report: runs the jobs over a directory of segments and writes page and aggregates."""
