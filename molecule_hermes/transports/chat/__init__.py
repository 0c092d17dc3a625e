"""Hermes through its API server: chat completions."""
