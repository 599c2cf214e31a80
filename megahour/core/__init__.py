"""Records, configuration, artifacts and stages: what everything else stands on."""
