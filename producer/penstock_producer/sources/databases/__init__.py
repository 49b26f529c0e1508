"""Tables and queries of a database as sources."""
