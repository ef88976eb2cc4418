"""The server-wide system prompt, which every prompt of every client begins with.

Parses and tokenizes it, and puts it before prompts. Values only; `Defaults` holds the current one and
replaces it as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from corral.core.errors import ContextExceeded, InvalidRequest
from corral.core.params import GenerationParams
from corral.generate.prompt import refuse_hopeless
from corral.generate.vocab import Vocab
from corral.schema.nested import MAX_SYSTEM_CHARS

FIELD = "system_prompt"


@dataclass(frozen=True, slots=True)
class SystemText:
    """A system prompt as given."""

    prompt: str
    anti_prompt: str
    assistant_name: str


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """A tokenized system prompt; without tokens there is no system prompt, whatever the names are."""

    tokens: tuple[int, ...] = ()
    anti_prompt: str = ""
    assistant_name: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is no system prompt; prompts then keep the BOS that the tokenizer adds."""
        return not self.tokens

    def before(self, prompt: list[int], n_ctx: int) -> list[int]:
        """Return a prompt that begins with the system prompt; an empty prompt stays empty."""
        tokens = [*self.tokens, *prompt] if prompt else []
        if len(tokens) >= n_ctx:
            raise ContextExceeded(len(tokens), n_ctx)
        return tokens

    def within(self, params: GenerationParams) -> GenerationParams:
        """Return the parameters of a prompt that begins with the system prompt."""
        stop = params.stop
        if self.anti_prompt and self.anti_prompt not in stop:
            stop = (*stop, self.anti_prompt)
        return msgspec.structs.replace(params, n_system=len(self.tokens), stop=stop)


NO_SYSTEM_PROMPT = SystemPrompt()


def parse_system_prompt(given: Any) -> SystemText:
    """Parse a text, or an object with a text and names."""
    if isinstance(given, str):
        given = {"prompt": given}
    if not isinstance(given, dict) or given.get("prompt") is None:
        raise InvalidRequest("must be a string, or an object with 'prompt'", field=FIELD)
    return SystemText(**{name: _text(given, name) for name in MAX_SYSTEM_CHARS})


def tokenize_system_prompt(text: SystemText, vocab: Vocab, n_ctx: int) -> SystemPrompt:
    refuse_hopeless(text.prompt, vocab, n_ctx)
    tokens = vocab.tokenize(text.prompt, add_special=True, parse_special=True) if text.prompt else []
    if len(tokens) >= n_ctx - 1:
        raise ContextExceeded(len(tokens), n_ctx)
    return SystemPrompt(tuple(tokens), text.anti_prompt, text.assistant_name)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{name}' must be a string", field=FIELD)
    if len(value) > MAX_SYSTEM_CHARS[name]:
        raise InvalidRequest(f"'{name}' may have at most {MAX_SYSTEM_CHARS[name]} characters", field=FIELD)
    return value
