"""Pictures and sounds of a request: where they are in it, and what their bytes mean."""
