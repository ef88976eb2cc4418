"""What several unit tests need."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def busy_interpreter():
    """A thread has the interpreter until it waits for something."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty directory for downloads, and nobody's token."""
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("MODEL_ENDPOINT", raising=False)
    return tmp_path / "cache"
