"""Load and decode the images and audio of a request."""
