"""Monitoring of a training run: per-step meters, and alerts."""
