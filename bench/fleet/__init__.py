"""A simulation of many engines: no model, but the real placement and prefix index."""
