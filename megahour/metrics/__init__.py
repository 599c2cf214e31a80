"""What Prometheus reads of a command at work: its steps, its models, its training, its disks."""
