"""What a run shows while it goes on: meters of every step, and alerts."""
