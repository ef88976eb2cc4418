"""The model's vocabulary as the front uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corral.core.fim import FimTokens
from corral.text.vocab import Segment


class Vocab(Protocol):
    """Thread-safe; a call with a long text takes a while."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    @property
    def max_piece_bytes(self) -> int: ...

    @property
    def control_texts(self) -> list[str]: ...

    @property
    def adds_bos(self) -> bool: ...

    @property
    def bos(self) -> int: ...

    @property
    def bos_text(self) -> str: ...

    @property
    def eos_text(self) -> str: ...

    @property
    def eot(self) -> int: ...

    @property
    def fim(self) -> FimTokens: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokenize each segment separately, in one call."""
        ...

    def detokenize(self, tokens: list[int]) -> str: ...

    def piece(self, token: int, special: bool = False) -> bytes: ...

    def pair(self, first: list[int], second: list[int]) -> list[int]:
        """Join two texts with the special tokens that the model expects."""
        ...

    def token_of(self, text: str) -> int | None: ...

    def is_control(self, token: int) -> bool: ...
