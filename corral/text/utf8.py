"""Bytes to text: characters come out whole, however the bytes were cut."""

from __future__ import annotations

import codecs


class Utf8Assembler:
    """Invalid bytes become U+FFFD; an unfinished character waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def is_mid_character(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)
