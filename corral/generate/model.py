"""The served model: its name, and facts that are known once it is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.chat.reasoning import ReasoningFormat
from corral.core.errors import NotSupported
from corral.core.model_title import title_of
from corral.core.params import GenerationParams, JsonWhitespace
from corral.core.still_loading import still_loading

if TYPE_CHECKING:
    from corral.chat.chat_format import ChatFormat
    from corral.chat.guard import Guard
    from corral.core.result import ModelInfo
    from corral.core.settings import Settings
    from corral.generate.engine import Engine
    from corral.generate.vocab import Vocab


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The server's side of every chat."""

    chat_format: ChatFormat
    tool_format: ChatFormat
    options: Mapping[str, Any]
    reasoning: ReasoningFormat = ReasoningFormat.AUTO
    reasoning_budget: int = -1
    budget_message: str = ""  # before the end of reasoning that is ended
    prefill: bool = True
    has_jinja: bool = True
    json_whitespace: JsonWhitespace = GenerationParams().json_whitespace
    guard: Guard | None = None
    turn_end: int = -1  # the token that ends a message


@dataclass(frozen=True, slots=True)
class RenderContext:
    """Facts of the model for responses. `is_verbose`: include the native response. `shares_slots`: clients
    may see each other's tokens."""

    model_name: str
    n_ctx: int
    vocab: Vocab
    is_verbose: bool
    shares_slots: bool

    def piece(self, token: int) -> bytes:
        """Return a token's bytes, also of control tokens."""
        return self.vocab.piece(token, special=True)


class ModelFacts:
    """Mutable: until the model is loaded, what depends on it raises."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._alias = next(iter(settings.server.aliases), "")
        self._take_path(settings.engine.model)
        self._only_embeds = settings.engine.only_embeds
        self._is_verbose = settings.engine.verbose
        self._shares_slots = settings.server.slots
        self._engine = engine
        self._loaded: tuple[Vocab, ChatSettings] | None = None
        self.rerank_template = ""

    def open(self, path: str, vocab: Vocab, chat: ChatSettings, rerank_template: str = "") -> None:
        """Set the loaded model; requests can be served from now on."""
        self._take_path(path)
        self._loaded = vocab, chat
        self.rerank_template = rerank_template

    @property
    def title(self) -> str:
        """Return what people call it: `--alias`, or what its file says."""
        return self._alias or title_of(self.path, self.info.name, self.info.basename)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def vocab(self) -> Vocab:
        return self._require_loaded()[0]

    @property
    def chat(self) -> ChatSettings:
        return self._require_loaded()[1]

    @property
    def info(self) -> ModelInfo:
        if self._engine.info is None:
            raise still_loading(self._engine.loading)
        return self._engine.info

    @property
    def render_context(self) -> RenderContext:
        return RenderContext(self.name, self.info.n_ctx, self.vocab, self._is_verbose, self._shares_slots)

    def require_generation(self) -> None:
        """Refuse completions on a server that only computes embeddings."""
        if self.info.can_generate:
            return
        if self._only_embeds:
            raise NotSupported("This server does not support completions. Start it without `--embeddings`")
        raise NotSupported("This server does not support completions: its model only computes embeddings")

    def _take_path(self, path: str) -> None:
        self.path = path
        # In responses: `--alias`, or the file name without its directory.
        self.name = self._alias or os.path.basename(path)

    def _require_loaded(self) -> tuple[Vocab, ChatSettings]:
        if self._loaded is None:
            raise still_loading(self._engine.loading)
        return self._loaded
