"""Hermes on this machine: its folder, its process, its model, the plugin in it."""
