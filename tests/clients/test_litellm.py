"""LiteLLM calls a function and streams the answer: `/v1/chat/completions`."""

from __future__ import annotations

from tests.clients.library import check_library


def test_litellm(program, proxy, tmp_path):
    check_library("litellm", program, proxy, tmp_path)
