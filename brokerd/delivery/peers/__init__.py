"""Knowledge about other instances: routes, mirrors, duplicates, notices, pings."""
