"""Ten ways to train one model with N workers."""
