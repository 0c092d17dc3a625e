"""What operators can observe: metrics."""
