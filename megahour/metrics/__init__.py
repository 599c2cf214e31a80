"""Prometheus metrics of a running command: its steps, model services, training and disks."""
