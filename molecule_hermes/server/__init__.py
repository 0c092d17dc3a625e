"""The composition root and everything that is HTTP."""
