"""Recipes: YAML files of steps, those that ship with the package, and what reads, runs and repairs them."""
