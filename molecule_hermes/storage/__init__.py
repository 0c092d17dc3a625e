"""Where tasks live."""
