"""Mask the header that Claude Code writes into its system prompt and that differs in every request.

The changing parts are replaced by constants, so that the prompt keeps its prefix.
"""

from __future__ import annotations

import re

BILLING_HEADER = "x-anthropic-billing-header"
_DIGEST = re.compile(r"(?<=cch=)[0-9A-Za-z]+")
_BUILD = re.compile(r"(?<=cc_version=)(\d+\.\d+\.\d+)\.[0-9A-Za-z]+")


def mask_billing(text: str) -> str:
    """Mask the parts that change with every request; other texts are returned as they are."""
    if not text.startswith(BILLING_HEADER):
        return text
    line, end, rest = text.partition("\n")
    return _BUILD.sub(r"\1", _DIGEST.sub("fffff", line)) + end + rest
