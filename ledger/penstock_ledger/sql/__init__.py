"""SQLite and PostgreSQL behind one handle, and the tables."""
