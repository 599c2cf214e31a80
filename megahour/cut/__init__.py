"""Cuts aligned recordings into utterances, and rates their transcripts and their sound."""
