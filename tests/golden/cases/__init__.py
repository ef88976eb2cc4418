"""The cases, in groups: each is a module here and a file in `recorded`."""
