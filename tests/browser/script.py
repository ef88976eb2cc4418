"""JavaScript in Chromium and in Node: the body of an async function, whose value comes back as JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page

MODULE = Path(__file__).parents[2] / "corral" / "webui" / "completion.js"
_SECONDS = 300

Run = Callable[..., object]  # (body, **arguments); the body has `m`, the module, and the arguments by name


def in_chromium(page: Page, url: str) -> Run:
    page.goto(url + "/completion.js")  # a page of that server with nothing in it but text

    def run(body: str, **arguments: object) -> object:
        script = (
            f"async ({{{', '.join(arguments)}}}) => {{ const m = await import('/completion.js');\n{body}\n}}"
        )
        return page.evaluate(script, arguments)

    return run


def in_node(folder: Path) -> Run:
    shutil.copy(MODULE, folder / "completion.mjs")

    def run(body: str, **arguments: object) -> object:
        given = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in arguments.items())
        script = (
            "import * as m from './completion.mjs';\n"
            f"{given}const value = await (async () => {{\n{body}\n}})();\n"
            "console.log(JSON.stringify(value ?? null));\n"
        )
        (folder / "script.mjs").write_text(script)
        done = subprocess.run(
            ["node", "script.mjs"], cwd=folder, capture_output=True, text=True, timeout=_SECONDS
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    return run
