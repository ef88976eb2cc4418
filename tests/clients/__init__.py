"""Agents and libraries of others as clients, offline: `make clients` installs and runs them."""
