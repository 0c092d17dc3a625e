"""A test double of the workspace platform's package, found through PYTHONPATH."""
