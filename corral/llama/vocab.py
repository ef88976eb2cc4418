"""Text to tokens and back, for one model. Read-only: safe from any thread."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np

from corral.core.errors import CorralError, InvalidRequest
from corral.core.fim import FimTokens
from corral.llama.library import lib

_TOKEN_NULL = -1
_AROUND = (lib.llama_vocab_bos, lib.llama_vocab_eos, lib.llama_vocab_sep)
_FIM = {
    "pre": lib.llama_vocab_fim_pre,
    "suf": lib.llama_vocab_fim_suf,
    "mid": lib.llama_vocab_fim_mid,
    "rep": lib.llama_vocab_fim_rep,
    "sep": lib.llama_vocab_fim_sep,
    "pad": lib.llama_vocab_fim_pad,
}
# Every byte that UTF-8 has, in characters that hardly any vocabulary knows as a whole.
_ALL_BYTES = "".join(
    map(chr, [*range(0x800), *range(0x800, 0xD800, 0x101), *range(0xE000, 0x110000, 0x1003)])
)


class Vocab:
    """Borrows the vocabulary of an open `Model`."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.n_tokens = int(lib.llama_vocab_n_tokens(handle))
        self.type = int(lib.llama_vocab_type(handle))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(handle))
        self.eog_tokens = frozenset(t for t in range(self.n_tokens) if lib.llama_vocab_is_eog(handle, t))
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._max_piece_bytes = 0

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8")
        capacity = len(data) + 16
        while True:
            tokens = np.empty(capacity, np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            n = lib.llama_tokenize(
                self.handle, data, len(data), pointer, capacity, add_special, parse_special
            )
            if n >= 0:
                return _known(tokens[:n].tolist())
            capacity = -n

    def rehearse(self) -> None:
        """Use it once like the front is going to: libllama falls over some that are damaged.

        It aborts the process then, which has to be the engine's. What tokens are it has looked up already.
        """
        if self.type == lib.LLAMA_VOCAB_TYPE_RWKV:
            # It would look for the missing one until there is no memory left.
            pieces = {self._read_piece(token, special=True) for token in range(self.n_tokens)}
            if not pieces.issuperset(bytes([byte]) for byte in range(256)):
                raise CorralError("the model's vocabulary is damaged: it lacks tokens of single bytes")
        for text in ("", _ALL_BYTES) if self.type != lib.LLAMA_VOCAB_TYPE_NONE else ():
            for parses in (False, True):
                with contextlib.suppress(InvalidRequest):
                    self.tokenize(text, add_special=True, parse_special=parses)

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token; a control token has none unless `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._read_piece(token, special)
        return piece

    def detokenize(self, tokens: list[int]) -> str:
        return b"".join(self.piece(t, special=True) for t in tokens).decode("utf-8", "replace")

    def pair(self, first: list[int], second: list[int]) -> list[int]:
        """Two texts as one, with the tokens around them that the model wants."""
        bos, eos, sep = (int(token(self.handle)) for token in _AROUND)
        before = [bos] if self.adds_bos else []
        end = [eos if eos != _TOKEN_NULL else sep] if lib.llama_vocab_get_add_eos(self.handle) else []
        between = [sep] if lib.llama_vocab_get_add_sep(self.handle) else []
        return [*before, *first, *end, *between, *second, *end]

    def is_eog(self, token: int) -> bool:
        return token in self.eog_tokens

    def is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_get_attr(self.handle, token) & lib.LLAMA_TOKEN_ATTR_CONTROL)

    def token_of(self, text: str) -> int | None:
        """The one token that a text is, if it is one."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        is_one = len(tokens) == 1 and self.piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_one else None

    @property
    def control_texts(self) -> list[str]:
        """The texts of all control tokens."""
        texts = (self._text_of(token) for token in range(self.n_tokens) if self.is_control(token))
        return [text for text in texts if text]

    @property
    def max_piece_bytes(self) -> int:
        """No token stands for more bytes than this."""
        if not self._max_piece_bytes:
            measure = lib.llama_token_to_piece  # without room for it, it tells how much it needs
            self._max_piece_bytes = max(
                -measure(self.handle, t, None, 0, 0, True) for t in range(self.n_tokens)
            )
        return self._max_piece_bytes

    @property
    def bos(self) -> int:
        return int(lib.llama_vocab_bos(self.handle))

    @property
    def bos_text(self) -> str:
        return self._text_of(self.bos)

    @property
    def eos_text(self) -> str:
        return self._text_of(lib.llama_vocab_eos(self.handle))

    @property
    def eot(self) -> int:
        """The token that ends a turn; the one that ends a text where there is none."""
        eot = int(lib.llama_vocab_eot(self.handle))
        return eot if eot != _TOKEN_NULL else int(lib.llama_vocab_eos(self.handle))

    @property
    def newline(self) -> int:
        return int(lib.llama_vocab_nl(self.handle))

    @property
    def fim(self) -> FimTokens:
        found = {name: int(token(self.handle)) for name, token in _FIM.items()}
        return FimTokens(**{name: token for name, token in found.items() if token != _TOKEN_NULL})

    @property
    def suppressed(self) -> list[int]:
        """Tokens that the model's own metadata forbids to generate."""
        n = ctypes.c_int32(0)
        tokens = lib.llama_vocab_get_suppress_tokens(self.handle, ctypes.byref(n))
        return [int(tokens[i]) for i in range(n.value)]

    def _text_of(self, token: int) -> str:
        return "" if token == _TOKEN_NULL else self.piece(token, special=True).decode("utf-8", "replace")

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            return b""  # for libllama that would be the end
        buffer = ctypes.create_string_buffer(64)
        n = lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]


def _known(tokens: list[int]) -> list[int]:
    """Vocabularies without a token for what is unknown have -1 for it."""
    if _TOKEN_NULL in tokens:
        raise InvalidRequest("the model's vocabulary has no token for a part of this text")
    return tokens
