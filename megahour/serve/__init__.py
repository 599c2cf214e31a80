"""Batch inference as a service: models in their own processes, fed by the merged requests of all tasks."""

import os

# At each failed handshake gRPC writes a line of its own; the warnings of `standing` name it once.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
