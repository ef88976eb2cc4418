"""Check the grammars and JSON Schemas that clients send, and translate them for llguidance."""
