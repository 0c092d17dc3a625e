"""Tasks in a SQLite file, for one bridge."""
