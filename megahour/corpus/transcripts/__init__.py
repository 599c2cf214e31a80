"""Transcripts as they come: encodings, subtitles, JSON, speaker turns, and which file belongs to which."""
