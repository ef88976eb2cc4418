"""LangChain calls a function and streams the answer: `/v1/chat/completions`."""

from __future__ import annotations

from tests.clients.library import check_library


def test_langchain(program, proxy, tmp_path):
    check_library("langchain", program, proxy, tmp_path)
