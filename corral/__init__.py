"""Corral: an HTTP server for large language models on libllama."""

__version__ = "0.13.0"
BUILD_INFO = f"b{__version__}-corral"
