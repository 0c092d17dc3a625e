"""A bridge between A2A peers and the Hermes agent."""

__all__ = ["__version__"]

__version__ = "0.1.0"
