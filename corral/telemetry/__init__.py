"""One record per request, and everything that observes it: slots, queue, metrics, monitor, log, traces."""
