"""Whether the server is shutting down, so that it takes on nothing new."""

from __future__ import annotations

from corral.core.errors import Unavailable


class Shutdown:
    """Mutable: begins once, for all models."""

    def __init__(self) -> None:
        self.is_begun = False

    def begin(self) -> None:
        self.is_begun = True

    def check(self) -> None:
        """Raise if it has begun."""
        if self.is_begun:
            raise Unavailable("The server is shutting down")
