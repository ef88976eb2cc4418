"""The models of a server, from presets, directories and configuration files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral.cli.catalog import CACHE_RAM_MIB, read_catalog, serves_many
from corral.cli.configuration import configure
from corral.cli.given import UsageError
from corral.core.catalog import CatalogModel


def read(path: Path, text: str, *argv: str, **environ: str) -> dict[str, CatalogModel]:
    preset = path / "models.ini"
    preset.write_text(text)
    configuration = configure(["--models-preset", str(preset), *argv], environ)
    assert serves_many(configuration)
    return {model.name: model for model in read_catalog(configuration)}


def test_the_command_line_wins_over_a_section_and_that_over_all(tmp_path):
    text = "[*]\nc = 1\nnp = 1\nub = 64\nno-mmap = on\n[a]\nmodel = a.gguf\nc = 2\nnp = 2\n"
    found = read(tmp_path, text, "-c", "3", LLAMA_ARG_UBATCH="99", LLAMA_ARG_BATCH="99")["a"].settings.engine
    assert (found.n_ctx, found.n_parallel, found.n_ubatch, found.n_batch) == (3, 2, 64, 99)
    assert found.mmap is False
    assert found.cache_ram_mib == CACHE_RAM_MIB


def test_keys_that_only_sections_have(tmp_path):
    own = "[a]\nmodel = a\npin = false\nttl = 5\ngroup = big, gpu\nalias = x,y\nport = 1\n"
    text = f"[*]\ngroup = one\n{own}[u/m:Q4]\n[b]\npin = on\ngroup =\nhf-repo = u/b\n"
    found = read(tmp_path, text)
    assert [found[name].is_pinned for name in ("a", "b")] == [False, True]
    assert (found["a"].aliases, found["a"].settings.server.sleep_idle_s) == (("x", "y"), 5.0)
    assert found["a"].settings.server.alias == "a"
    assert [found[name].groups for name in ("a", "u/m:Q4", "b")] == [("big", "gpu"), ("one",), ()]
    assert found["u/m:Q4"].settings.server.hf_repo == "u/m:Q4"


def test_a_model_has_engines_of_its_own(tmp_path):
    text = "[*]\nengines = 2\n[a]\nmodel = a\n[b]\nmodel = b\nengines = 1\nray = 10.0.0.1:6379\n"
    found = read(tmp_path, text)
    servers = [found[name].settings.server for name in "ab"]
    assert [(server.n_engines, server.ray) for server in servers] == [(2, ""), (1, "10.0.0.1:6379")]
    for options in ("ray = 198.51.100.1:6379", "rpc-workers = 2"):
        with pytest.raises(UsageError, match=r"model 'a': .*--"):
            read(tmp_path, f"[a]\nmodel = a\n{options}\n")


DOCUMENTED = """version = 1

; (Optional) This section provides global settings shared across all presets.
; If the same key is defined in a specific preset, it will override the value in this global section.
[*]
c = 8192
n-gpu-layers = 8

; If the key corresponds to an existing model on the server,
; this will be used as the default config for that model
[ggml-org/MY-MODEL-GGUF:Q8_0]
; string value
chat-template = chatml
; numeric value
n-gpu-layers = 123
; flag value (for certain flags, you need to use the "no-" prefix for negation)
jinja = true
; shorthand argument (for example, context size)
c = 4096
; environment variable name
LLAMA_ARG_CACHE_RAM = 0
; file paths are relative to server's CWD
model-draft = ./my-models/draft.gguf
; but it's RECOMMENDED to use absolute path
model-draft = /Users/abc/my-models/draft.gguf

; If the key does NOT correspond to an existing model,
; you need to specify at least the model path or HF repo
[custom_model]
model = /Users/abc/my-awesome-model-Q4_K_M.gguf
"""  # of llama-server's README


def test_llama_servers_documented_preset_is_read_as_it_is(tmp_path):
    found = read(tmp_path, DOCUMENTED)
    first, second = (found[name].settings for name in ("ggml-org/MY-MODEL-GGUF:Q8_0", "custom_model"))
    assert (first.server.hf_repo, first.server.chat_template) == ("ggml-org/MY-MODEL-GGUF:Q8_0", "chatml")
    assert (first.engine.n_gpu_layers, first.engine.n_ctx, first.engine.cache_ram_mib) == (123, 4096, 0)
    assert first.engine.model_draft == "/Users/abc/my-models/draft.gguf"
    assert (second.engine.n_gpu_layers, second.engine.n_ctx) == (8, 8192)
    assert second.engine.model == "/Users/abc/my-awesome-model-Q4_K_M.gguf"


def test_one_model_given_is_the_only_one(tmp_path):
    assert not serves_many(configure(["--models-dir", str(tmp_path), "-m", "x.gguf"], {}))
    assert not serves_many(configure([], {}))


def test_a_directory_has_files_and_models_in_parts(tmp_path):
    (tmp_path / "parts").mkdir()
    names = ("one.gguf", ".hidden.gguf", "note.txt", "parts/mmproj-F16.gguf")
    for name in (*names, "parts/m-00002-of-00002.gguf", "parts/m-00001-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"")
    found = {model.name: model for model in read_catalog(configure(["--models-dir", str(tmp_path)], {}))}
    assert found.keys() == {"one", "parts"}
    assert found["parts"].settings.engine.model == str(tmp_path / "parts/m-00001-of-00002.gguf")
    assert found["parts"].settings.engine.mmproj == str(tmp_path / "parts/mmproj-F16.gguf")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[x]\nmodel = y.gguf\nctx-sise = 3\n", "did you mean 'ctx-size'?"),
        ("[x]\nctx-size = 3\n", "set `model` to a file"),
        ("[x]\nmodel = y\nalias = b\n[b]\nmodel = z\n", "are both called 'b'"),
        ("[x]\nmodel = y\nctx-size = many\n", "[x] ctx-size: 'many' is not an integer"),
        ("[x]\nmodel = y\ngroup = g\npin = on\n[z]\nmodel = y\ngroup = f, g\n", "'x' is pinned"),
        ("version = 2\n", "only `version = 1`"),
        ("[x\n", "is not valid"),
        ("", "no models found"),
    ],
)
def test_what_a_preset_cannot_say(tmp_path, text, reason):
    with pytest.raises(UsageError, match=re.escape(reason)):
        read(tmp_path, text)
