"""Networking helpers: public addresses, downloads, ports, the public URL."""
