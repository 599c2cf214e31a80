"""Generate corpora with known truth: synthetic voices, rooms, flawed transcripts, composed recordings."""
