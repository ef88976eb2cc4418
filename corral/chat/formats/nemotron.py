"""Nemotron Nano v2: `<TOOLCALL>[{"name": ..., "arguments": ...}]</TOOLCALL>`."""

from __future__ import annotations

from corral.chat.format import has_all
from corral.chat.listed import listed_format

FORMAT = listed_format("nemotron", has_all("<TOOLCALL>"), "<TOOLCALL>", "</TOOLCALL>")
