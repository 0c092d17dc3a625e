"""The ways to reach Hermes, side by side behind one seam (`base.Transport`)."""
