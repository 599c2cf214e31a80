"""megahour: piles of raw speech to a speech recogniser."""

__version__ = "0.1.0"
