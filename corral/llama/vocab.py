"""Tokenize and detokenize with libllama, for one model. Read-only: safe from any thread.

The front uses a `corral.text.vocab.Vocab`, built from `table`.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from corral.core.errors import CorralError, InvalidRequest
from corral.core.fim import FimTokens
from corral.llama.library import lib
from corral.text.vocab import NO_TOKEN, Segment, VocabTable, check_known, tokens_of

_FIM = {
    "pre": lib.llama_vocab_fim_pre,
    "suf": lib.llama_vocab_fim_suf,
    "mid": lib.llama_vocab_fim_mid,
    "rep": lib.llama_vocab_fim_rep,
    "sep": lib.llama_vocab_fim_sep,
    "pad": lib.llama_vocab_fim_pad,
}
# Every byte of UTF-8, in characters that hardly any vocabulary has as one token.
_ALL_BYTES = "".join(
    map(chr, [*range(0x800), *range(0x800, 0xD800, 0x101), *range(0xE000, 0x110000, 0x1003)])
)


class NativeVocab:
    """Borrows the vocabulary of an open `Model`."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.n_tokens = int(lib.llama_vocab_n_tokens(handle))
        self.type = int(lib.llama_vocab_type(handle))
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(handle))
        self.eog_tokens = frozenset(t for t in range(self.n_tokens) if lib.llama_vocab_is_eog(handle, t))
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        tokens = tokens_of(self.tokenize_bytes(text.encode("utf-8"), add_special, parse_special))
        check_known(tokens)
        return tokens

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        return [self.tokenize(*segment) for segment in segments]

    def tokenize_bytes(self, data: bytes, add_special: bool, parse_special: bool) -> bytearray:
        """Tokenize UTF-8 into 32 bits per token; NO_TOKEN stands where the vocabulary lacks a token."""
        capacity = len(data) + 16
        while True:
            tokens = bytearray(4 * capacity)
            first = ctypes.byref(ctypes.c_int32.from_buffer(tokens))
            n = lib.llama_tokenize(self.handle, data, len(data), first, capacity, add_special, parse_special)
            if n >= 0:
                return tokens[: 4 * n]
            capacity = -n

    def rehearse(self) -> None:
        """Tokenize once as requests will: libllama aborts on some damaged vocabularies.

        The abort then happens here, before there are requests. The tokens themselves were looked up
        already.
        """
        if self.type == lib.LLAMA_VOCAB_TYPE_RWKV:
            # libllama would search for the missing byte until memory runs out.
            pieces = {self._read_piece(token, special=True) for token in range(self.n_tokens)}
            if not pieces.issuperset(bytes([byte]) for byte in range(256)):
                raise CorralError("the model's vocabulary is damaged: it lacks tokens of single bytes")
        for text in ("", _ALL_BYTES) if self.type != lib.LLAMA_VOCAB_TYPE_NONE else ():
            for parses in (False, True):
                with contextlib.suppress(InvalidRequest):
                    self.tokenize(text, add_special=True, parse_special=parses)

    def table(self, chat_templates: Mapping[str, str]) -> VocabTable:
        """Return all tokens, for a process without libllama."""
        tokens, handle = range(self.n_tokens), self.handle
        pieces = [self._read_piece(token, special=True) for token in tokens]
        if not any(pieces):
            raise CorralError("the model has no vocabulary")  # libllama would abort on what follows
        attrs = [lib.llama_vocab_get_attr(handle, token) for token in tokens]
        fim = {name: int(token(handle)) for name, token in _FIM.items()}
        return VocabTable(
            pieces=b"".join(pieces),
            bounds=array.array("i", itertools.accumulate(map(len, pieces), initial=0)).tobytes(),
            controls=[token for token in tokens if attrs[token] & lib.LLAMA_TOKEN_ATTR_CONTROL],
            unknowns=[token for token in tokens if attrs[token] & lib.LLAMA_TOKEN_ATTR_UNKNOWN],
            eog_tokens=self.eog_tokens,
            bos=self.bos,
            eos=int(lib.llama_vocab_eos(handle)),
            eot=int(lib.llama_vocab_eot(handle)),
            sep=int(lib.llama_vocab_sep(handle)),
            adds_bos=self.adds_bos,
            adds_eos=bool(lib.llama_vocab_get_add_eos(handle)),
            adds_sep=bool(lib.llama_vocab_get_add_sep(handle)),
            fim=FimTokens(**{name: token for name, token in fim.items() if token != NO_TOKEN}),
            chat_templates=dict(chat_templates),
        )

    def piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of one token; a control token has none unless `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._read_piece(token, special)
        return piece

    def detokenize(self, tokens: list[int]) -> str:
        return b"".join(self.piece(t, special=True) for t in tokens).decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        return token in self.eog_tokens

    def is_control(self, token: int) -> bool:
        return bool(lib.llama_vocab_get_attr(self.handle, token) & lib.LLAMA_TOKEN_ATTR_CONTROL)

    def token_of(self, text: str) -> int | None:
        """Return the token that has exactly this text, if there is one."""
        tokens = self.tokenize(text, add_special=False, parse_special=True)
        is_one = len(tokens) == 1 and self.piece(tokens[0], special=True) == text.encode()
        return tokens[0] if is_one else None

    @property
    def bos(self) -> int:
        return int(lib.llama_vocab_bos(self.handle))

    @property
    def newline(self) -> int:
        return int(lib.llama_vocab_nl(self.handle))

    @property
    def suppressed(self) -> list[int]:
        """Tokens that the model's metadata forbids to generate."""
        n = ctypes.c_int32(0)
        tokens = lib.llama_vocab_get_suppress_tokens(self.handle, ctypes.byref(n))
        return [int(tokens[i]) for i in range(n.value)]

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.n_tokens:
            return b""  # libllama would abort
        buffer = ctypes.create_string_buffer(64)
        n = lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = lib.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]
