"""A job without a scheduler: one torchrun agent a host, started over ssh, and all ended together."""
