"""Audio as bytes: files, containers, archives, addresses, and the networks that may be contacted."""
