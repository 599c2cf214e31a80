"""Corpora made to measure against: synthetic voices, rooms, flawed transcripts, composed recordings."""
