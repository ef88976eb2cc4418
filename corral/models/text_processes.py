"""Start the processes that tokenize and run chat templates for a front.

They import their modules while the front still imports its own, so nothing here may import much.
"""

from __future__ import annotations

from corral.core.settings import ServerSettings
from corral.generate.pools import n_prompt_threads
from corral.link.renderer import Renderer
from corral.link.tokenizer import Tokenizer


def start_tokenizer(server: ServerSettings) -> Tokenizer:
    """Raises CorralError if the process cannot be started."""
    tokenizer = Tokenizer(n_prompt_threads(server) + 2, server.engine_timeout_s)
    tokenizer.start()
    return tokenizer


def start_renderer(server: ServerSettings) -> Renderer:
    renderer = Renderer(server.engine_timeout_s)
    renderer.start()
    return renderer
