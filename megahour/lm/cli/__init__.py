"""`megahour lm`: one command for each task."""
