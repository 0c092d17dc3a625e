"""Hermes on this machine: its folder, its process, its model and the plugin in it."""
