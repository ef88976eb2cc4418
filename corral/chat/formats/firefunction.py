"""Firefunction v2: ` functools[{"name": ..., "arguments": ...}]`."""

from __future__ import annotations

from corral.chat.format import has_all
from corral.chat.listed import listed_format

FORMAT = listed_format("firefunction", has_all(" functools["), " functools")
