"""A model's vocabulary in Python: the bytes and kinds of tokens, as libllama defines them.

`Vocab` looks tokens up in a table. Texts are tokenized elsewhere, so its process needs no native code.
Read-only: safe from any thread.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from corral.core.errors import InvalidRequest
from corral.core.fim import FimTokens
from corral.core.modifier import Override

NO_TOKEN = -1
_PIECE_TOKENS = 16384

Segment = tuple[str, bool, bool]  # text, add_special, parse_special
TokenizeAll = Callable[[Sequence[Segment]], list[list[int]]]
TokenizeSoon = Callable[[Sequence[Segment]], Awaitable[list[list[int]]]]


class UnknownTexts(Exception):
    """Texts that are not tokenized yet; see `Vocab.knowing`."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments


class VocabFile(msgspec.Struct, frozen=True):
    """The model file to read a vocabulary from."""

    path: str
    overrides: tuple[Override, ...] = ()


class VocabTable(msgspec.Struct, frozen=True, array_like=True, tag="vocab"):
    """Everything that the front needs to know about a model's tokens."""

    pieces: bytes  # of all tokens, concatenated
    bounds: bytes  # start of each token, and the end of the last: 32 bits each
    controls: list[int]
    unknowns: list[int]
    eog_tokens: frozenset[int]
    bos: int
    eos: int
    eot: int
    sep: int
    adds_bos: bool
    adds_eos: bool
    adds_sep: bool
    fim: FimTokens
    chat_templates: dict[str, str]  # the default has an empty name


class Vocab:
    def __init__(self, table: VocabTable, tokenize_all: TokenizeAll) -> None:
        self._table = table
        self._tokenize_all = tokenize_all
        self._bounds = memoryview(table.bounds).cast("i")
        self._controls = frozenset(table.controls)
        self._hidden = self._controls.union(table.unknowns)
        self.n_tokens = len(self._bounds) - 1
        self.max_piece_bytes = max(map(operator.sub, self._bounds[1:], self._bounds), default=0)
        self.eog_tokens = table.eog_tokens
        self.adds_bos = table.adds_bos
        self.bos = table.bos
        self.eot = table.eot if table.eot != NO_TOKEN else table.eos
        self.bos_text = self._text_of(table.bos)
        self.eos_text = self._text_of(table.eos)
        self.fim = table.fim
        self.chat_templates = table.chat_templates
        self.token_of: Callable[[str], int | None] = functools.lru_cache(maxsize=256)(self._token_of)
        self.tokenize_soon: TokenizeSoon | None = None  # of short texts, on the event loop

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self.tokenize_all([(text, add_special, parse_special)])[0]

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokenize each segment separately, in one call."""
        found = self._tokenize_all(segments) if segments else []
        for tokens in found:
            check_known(tokens)
        return found

    def knowing(self, known: Mapping[Segment, list[int]]) -> Vocab:
        """Return a vocabulary that never waits: it has the tokens of these texts, and raises UnknownTexts for
        others."""

        def look_up(segments: Sequence[Segment]) -> list[list[int]]:
            unknown = [segment for segment in segments if segment not in known]
            if unknown:
                raise UnknownTexts(unknown)
            return [list(known[segment]) for segment in segments]

        other = object.__new__(Vocab)
        other.__dict__.update(self.__dict__)
        other._tokenize_all, other.token_of = look_up, other._token_of
        return other

    def piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of one token; a control token has none unless `special`."""
        if not 0 <= token < self.n_tokens or (not special and token in self._hidden):
            return b""
        return self._table.pieces[self._bounds[token] : self._bounds[token + 1]]

    def detokenize(self, tokens: list[int]) -> str:
        """A piece at a time: other threads run in between."""
        pieces, bounds, known = self._table.pieces, self._bounds, range(self.n_tokens)
        parts = (tokens[at : at + _PIECE_TOKENS] for at in range(0, len(tokens), _PIECE_TOKENS))
        texts = (b"".join([pieces[bounds[t] : bounds[t + 1]] for t in part if t in known]) for part in parts)
        return b"".join(texts).decode("utf-8", "replace")

    def pair(self, first: list[int], second: list[int]) -> list[int]:
        """Join two texts with the special tokens that the model expects."""
        table = self._table
        before = [table.bos] if table.adds_bos else []
        end = [table.eos if table.eos != NO_TOKEN else table.sep] if table.adds_eos else []
        between = [table.sep] if table.adds_sep else []
        return [*before, *first, *end, *between, *second, *end]

    def is_control(self, token: int) -> bool:
        return token in self._controls

    @property
    def control_texts(self) -> list[str]:
        """The texts of all control tokens."""
        return [text for text in map(self._text_of, self._table.controls) if text]

    def _token_of(self, text: str) -> int | None:
        """Return the token whose text this is, if there is one."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        is_one = len(tokens) == 1 and self.piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_one else None

    def _text_of(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace")


def free_tokens(tokens: list[int]) -> None:
    """Empty a list that is not needed any more, a piece at a time: millions of numbers take a while."""
    while tokens:
        del tokens[-_PIECE_TOKENS:]


def tokens_of(data: bytes | bytearray) -> list[int]:
    """A piece at a time: other threads run in between."""
    array = memoryview(data).cast("i")
    tokens: list[int] = []
    for at in range(0, len(array), _PIECE_TOKENS):
        tokens += array[at : at + _PIECE_TOKENS].tolist()
    return tokens


def check_known(tokens: list[int]) -> None:
    """Raise for text for which the vocabulary has neither a token nor an "unknown" token."""
    if any(NO_TOKEN in tokens[at : at + _PIECE_TOKENS] for at in range(0, len(tokens), _PIECE_TOKENS)):
        raise InvalidRequest("the model's vocabulary has no token for a part of this text")
