"""The processes that tokenize and run chat templates for a front.

They import their modules while the front still imports its own, so nothing here may import much.
"""

from __future__ import annotations

from corral.api.pools import n_prompt_threads
from corral.core.settings import ServerSettings
from corral.link.renderer import Renderer
from corral.link.tokenizer import Tokenizer


class TextProcesses:
    """Mutable: `start` and `close` are called once."""

    def __init__(self, server: ServerSettings) -> None:
        self.tokenizer = Tokenizer(n_prompt_threads(server) + 2, server.engine_timeout_s)
        self.renderer = Renderer(server.engine_timeout_s)

    def start(self) -> None:
        """Raises CorralError if a process cannot be started."""
        try:
            self.tokenizer.start()
            self.renderer.start()
        except BaseException:
            self.close()
            raise

    def rest(self) -> None:
        """End the processes until their next work."""
        self.tokenizer.rest()
        self.renderer.rest()

    def close(self) -> None:
        """Blocks until the processes are gone."""
        self.tokenizer.close()
        self.renderer.close()
