"""Chromium, and pages in it that fail their test if anything goes wrong in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.browser.problem import Problems
from tests.system.process import CorralProcess

PATIENCE_MS = 120_000  # on a busy machine
# A page with a window may write to the clipboard after a click; headless shell asks for the permission.
OPTIONS: dict[str, Any] = {"service_workers": "block", "permissions": ["clipboard-write"]}
# In the order of preference: a page in headless shell takes half the CPU time.
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """One for all tests here; it has an event loop, with which others could have none."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    assert program, "there is no Chromium; `make dev` installs one"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # it has none for root
    microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    isolation = ["--site-per-process"]  # as it is by default where there are windows
    browser = playwright.chromium.launch(executable_path=program, args=[*sandbox, *microphone, *isolation])
    yield browser
    browser.close()


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def new_context(browser: Browser, problems: Problems) -> Iterator[Callable[..., BrowserContext]]:
    """Browsers that know nothing of each other; options as of `Browser.new_context`."""
    contexts: list[BrowserContext] = []

    def create(**options: Any) -> BrowserContext:
        context = browser.new_context(**{**OPTIONS, **options})
        context.set_default_timeout(PATIENCE_MS)
        problems.watch(context)
        contexts.append(context)
        return context

    yield create
    for context in contexts:
        context.close()
    assert not problems.unexpected, "\n".join(problems.unexpected)


@pytest.fixture
def new_page(new_context) -> Callable[..., Page]:
    """A page of a new browser; options as of `Browser.new_context`."""
    return lambda **options: new_context(**options).new_page()


@pytest.fixture
def page(new_page) -> Page:
    return new_page()


@pytest.fixture(scope="package")
def corral(models: Path) -> Iterator[CorralProcess]:
    """A tiny model with four slots, shared by all tests here. Its answers may go on for ever."""
    model = models / "llama-bpe.gguf"
    with CorralProcess("-m", model, "-c", 16384, "-np", 4, "--slots", "--context-shift") as server:
        yield server
