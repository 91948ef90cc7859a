"""Morning report: runs the jobs over a directory of segments; writes a page and aggregates."""
