"""Where tasks live: in memory, in a SQLite file, in PostgreSQL."""
