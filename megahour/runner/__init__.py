"""Runs a stage on an engine: plans shards, commits results, counts what is bad, shows progress."""
