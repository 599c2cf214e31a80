"""Audio as bytes: files, containers, archives, addresses, and what a network may be asked for."""
