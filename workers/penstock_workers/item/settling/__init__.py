"""Makes outcomes durable, in groups: rows in SQL, entries in Redis, then the acknowledgement."""
