"""Gradients as few bits: the threshold codec, its residuals and thresholds."""
