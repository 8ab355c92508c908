"""Job and cluster files become a complete, typed and checked `Resolved`."""
