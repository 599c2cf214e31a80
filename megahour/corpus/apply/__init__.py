"""Rows of an artifact through a function of the user's."""
