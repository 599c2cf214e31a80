"""Read transcripts: encodings, subtitles, JSON, speaker turns, and pairing transcripts with audio files."""
