"""Where tasks run: a pool of processes on this machine, or Spark."""
