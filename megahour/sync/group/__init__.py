"""Workers that exchange tensors: over the network, in threads, and after one is lost."""
