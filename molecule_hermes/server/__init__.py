"""The A2A server: the composition root, routes and middleware."""
