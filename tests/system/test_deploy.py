"""The unit and the image: what they name exists, what they start starts, as far as it goes without either."""

from __future__ import annotations

import configparser
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from corral.cli.configuration import configure
from corral.cli.options import OPTIONS

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "corral.service"
ENVIRONMENT = ROOT / "deploy" / "corral.env"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NAMES = {name for option in OPTIONS for name in (*option.names, *option.negative)}
VARIABLES = {name for option in OPTIONS for name in option.variables} | {"LLAMA_CACHE"}


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = lambda optionstr: optionstr
    unit.read_string(UNIT.read_text())
    return unit["Service"]


def environment() -> dict[str, str]:
    """What the unit sets, and all that the file for it does or suggests."""
    lines = [line.removeprefix("#") for line in ENVIRONMENT.read_text().splitlines()]
    pairs = [*shlex.split(service()["Environment"]), *(line for line in lines if re.match(r"\w+=", line))]
    return dict(pair.split("=", 1) for pair in pairs)


def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text().replace("ExecStart=/opt/corral/bin/corral", f"ExecStart={sys.executable}")
    )
    result = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert UNIT.name not in result.stderr


def test_the_unit_starts_corral_with_options_there_are():
    program, *words = shlex.split(service()["ExecStart"])
    assert program.endswith("/bin/corral")
    assert {word for word in words if word.startswith("-")} <= NAMES
    assert environment().keys() <= VARIABLES
    configure([], environment())


def test_the_unit_lets_requests_finish():
    assert float(service()["TimeoutStopSec"]) > configure([], environment()).settings.server.timeout_s
    assert service()["KillMode"] == "mixed"


@pytest.mark.parametrize(
    "line", ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=on-failure"]
)
def test_the_unit_is_guarded(line):
    name, _, value = line.partition("=")
    assert service()[name] == value


def copied() -> list[str]:
    """What the image takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
    names = [word for line in lines for word in line.split()[:-1]]
    return [name for name in names if not any(name.startswith(f"{other}/") for other in names)]


def test_the_image_copies_what_is_there():
    seen_by_builder = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert sorted(copied()) == sorted(seen_by_builder)
    for name in copied():
        assert (ROOT / name).exists(), name


def test_the_image_starts_corral_with_options_there_are():
    program, *words = json.loads(re.search(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.M)[1])
    assert program == "corral"
    assert {word for word in words if word.startswith("-")} <= NAMES
    assert configure(words, {}).settings.server.host == "0.0.0.0"
    assert f"EXPOSE {configure([], {}).settings.server.port}\n" in DOCKERFILE


@pytest.mark.slow
def test_what_the_image_copies_is_all_that_corral_is_made_of(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for name in copied():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, source]
    environment = {**os.environ, "CORRAL_WITHOUT_LIBLLAMA": "1"}
    result = subprocess.run(pip, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    ours = {
        path.relative_to(ROOT) for path in (ROOT / "corral").rglob("*") if "__pycache__" not in path.parts
    }
    theirs = {path.relative_to(target) for path in (target / "corral").rglob("*")}
    assert not ours - theirs
    version = subprocess.run(
        [sys.executable, "-m", "corral", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
    )
    assert version.returncode == 0, version.stderr


@pytest.mark.parametrize("status", [200, 503])
def test_the_image_is_as_healthy_as_its_server_says(status):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    program, *words = json.loads(re.search(r"^  CMD (\[.+\])$", DOCKERFILE, re.M)[1])
    assert program == "python3"
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {**os.environ, "LLAMA_ARG_PORT": str(server.server_port)}
        result = subprocess.run([sys.executable, *words], env=env, capture_output=True)
        server.shutdown()
    assert (result.returncode == 0) == (status == 200)
