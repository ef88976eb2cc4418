"""Many models at one address: load them on request, unload idle ones to make room, forward requests."""
