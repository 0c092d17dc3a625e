"""The A2A client behind the commands, and the terminal."""
