"""Utterances from aligned recordings: where to cut, which tier they belong to, how they sound."""
