"""Measure a model on this machine, and re-encode its weights for faster kernels."""
