"""Jobs of peers, each run by a Python of its own that has the peer."""
