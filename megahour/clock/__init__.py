"""The time model: how long a training takes with N machines, and with which trainer."""
