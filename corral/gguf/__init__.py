"""Read and check GGUF files in pure Python, before native code opens them."""
