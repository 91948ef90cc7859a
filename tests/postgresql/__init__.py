"""Real PostgreSQL servers for tests, and a relay that breaks the way to them."""
