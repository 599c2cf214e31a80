"""Records, configuration, artifacts and stages: the foundation of every other folder."""
