"""The command line: recipes, runs, status and repair."""
