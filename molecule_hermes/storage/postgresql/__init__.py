"""Tasks in PostgreSQL."""
