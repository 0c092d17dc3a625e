"""A turn as data, its place in line, and what each transport can do. No I/O."""
