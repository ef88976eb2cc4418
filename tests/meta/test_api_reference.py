"""The API's page names what the application has, no more and no less; documents name what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from corral.api.native import session, slot
from corral.api.openapi import ERRORS
from corral.cli.options import OPTIONS
from corral.core.errors import error_classes
from tools.api_reference import endpoints, routes, slug

ROOT = Path(__file__).parents[2]
PAGES = [
    *(path for folder in (".", "bench", "native") for path in sorted((ROOT / folder).glob("*.md"))),
    *sorted((ROOT / "docs").rglob("*.md")),
]
OPTION_NAMES = {name for option in OPTIONS for name in (*option.names, *option.negative)}
# Of our other commands, of pip, docker, curl and others, and of servers that people come from.
FOREIGN = (
    "--add-host --against --allow-shlib-undefined --build --build-arg --cacert --cpu --cpus --data-binary",
    "--base --depth --modelfile --outfile --outtype --print-supported-models --upgrade",
    "--address --dashboard --extra-index-url --from-file --gpus --install --join --json --local-provider",
    "--no-cache-dir --no-deps --now --only --only-binary --oss",
    "--n-repeats --n-streams --requests --rm --rounds --seconds --server --stop-timeout",
    "--target --text --tokens --tools --url --yes",
    "--cache --chat_format --clip_model_path --config.file --config_file",
    "--n_ctx --n_gpu_layers --n_threads --spec-type",
    "--enable-lora --enable-prefix-caching --gpu-memory-utilization --lora-modules --max-model-len",
    "--max-num-batched-tokens --max-num-seqs --reasoning-parser --tensor-parallel-size --tool-call-parser",
)
ACTIONS: dict[str, Any] = {
    "POST /slots/{id_slot}": slot._ACTIONS,
    "POST /sessions/{id_session}": session._ACTIONS,
}
REFUSED = {("POST /cors-proxy", "GET /cors-proxy")}  # always


def test_every_route_has_a_row():
    named = {endpoint.route for endpoint in endpoints()}
    for names in {route.names for route in routes().values()} - REFUSED:
        assert len(named.intersection(names)) == 1, f"add one of {names} to tools/endpoints.md"


def test_every_row_is_a_route():
    names = [endpoint.name for endpoint in endpoints()]
    assert len(set(names)) == len(names)
    for endpoint in endpoints():
        assert endpoint.route in routes(), endpoint.name


@pytest.mark.parametrize("route", ACTIONS)
def test_every_action_has_a_row(route):
    prefix = f"{route}?action="
    named = [e.name.removeprefix(prefix) for e in endpoints() if e.route == route]
    assert sorted(named) == sorted(ACTIONS[route])


def test_every_row_says_what_it_does_and_what_comes_back():
    known = {"what", "needs", "answer", "codes", "kind", "server"}
    for endpoint in endpoints():
        assert endpoint.facts.keys() <= known, endpoint.name
        assert endpoint.facts["answer"], endpoint.name
        assert endpoint.facts.get("what") or routes()[endpoint.route].summary, endpoint.name


def test_every_error_is_on_the_page_of_errors():
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    rows = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \|", text, re.M))
    assert rows >= {(str(error.status), error.type) for error in error_classes()}
    assert {status for status, _ in rows} == {str(status) for status in ERRORS} | {"405"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors_of(path), target


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs"))
        assert name == "README.md" or f"]({name})" in index, name


def test_every_page_is_two_clicks_from_the_readme():
    reached = {ROOT / "README.md"}
    for _ in range(2):
        reached |= {page for each in reached for page in pages_linked_from(each)}
    assert not set((ROOT / "docs").rglob("*.md")) - reached


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_options_exist(page):
    foreign = {name for line in FOREIGN for name in line.split()}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", page.read_text()))
    if page.name != "CHANGELOG.md":
        assert not named - OPTION_NAMES - foreign


def pages_linked_from(page: Path) -> set[Path]:
    names = re.findall(r"\]\(([^)\s#:]+\.md)", without_code(page.read_text()))
    return {(page.parent / name).resolve() for name in names}


def anchors_of(path: Path) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.+)$", without_code(path.read_text()), re.M)}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
