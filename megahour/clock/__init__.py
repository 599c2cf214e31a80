"""The time model: how long training takes on N machines with each trainer."""
