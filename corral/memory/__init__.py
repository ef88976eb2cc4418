"""Plan the memory that an engine needs, and shrink its settings until they fit."""
