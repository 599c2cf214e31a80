"""Batch inference as a service: models in their own processes, fed by the merged requests of all tasks."""
