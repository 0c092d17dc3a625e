"""Hermes through our platform plugin, which calls back."""
