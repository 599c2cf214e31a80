"""The command line: the modules of its commands, and `plan`."""
