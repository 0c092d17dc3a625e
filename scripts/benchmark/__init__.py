"""What the bridge itself costs: Hermes is replaced by a fake without latency."""
