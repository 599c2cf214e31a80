"""Interchange: one neutral record, and a module for each format that it is written to or read from."""
