"""What is known of other instances: routes, mirrors, duplicates, notices, pings."""
