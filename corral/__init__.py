"""Corral: an HTTP server for large language models on libllama."""

__version__ = "0.13.0"
