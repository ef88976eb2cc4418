"""What is imported when: nobody who starts a server waits for what is not needed yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral.core import libllama

HEAVY = [
    "numpy",
    "starlette.applications",
    "pydantic",
    "rich",
    "llama_cpp",
    "huggingface_hub",
    "httpx",
    "PIL",
    "anyio",
]
UNLESS_FILELOCK = ["asyncio"] if sys.version_info >= (3, 11) else []  # that of Python 3.10 imports it


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("corral.cli.main", [*HEAVY, "asyncio", "uvicorn"]),
        ("corral.cli.model_source", [*HEAVY, "asyncio"]),
        ("corral.server.run, corral.models.only_life, corral.models.life", HEAVY),
        (
            "corral.link.worker",
            [
                "llguidance",
                "jinja2",
                "diskcache",
                "uvicorn",
                "starlette.applications",
                "rich",
                *UNLESS_FILELOCK,
            ],
        ),
        (
            "corral.link.tokenizer_worker",
            [
                "numpy",
                "psutil",
                "llguidance",
                "jinja2",
                "asyncio",
                "uvicorn",
                "starlette.applications",
                "rich",
                "corral.engine",
            ],
        ),
        ("corral.link.renderer_worker", ["numpy", "psutil", "asyncio", "llama_cpp", "uvicorn", "pydantic"]),
        (
            "corral.server.app, corral.models.only_model",
            [
                *("llama_cpp", "llguidance", "diskcache", "rich", "huggingface_hub"),
                *("jinja2", "referencing", "PIL", "soundfile", "soxr"),  # until the first that needs them
            ],
        ),
    ],
)
def test_it_does_without(module, unwanted):
    code = f"import sys, {module}; print(*(name for name in {unwanted} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_no_schema_is_built_before_a_request_needs_it():
    code = (
        "import corral.server.app; from corral.schema.parse import RequestModel as model; "
        "found = model.__subclasses__(); [found.extend(each.__subclasses__()) for each in found]; "
        "print(len(found) > 20, *(each.__name__ for each in found if each.__pydantic_complete__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_package_of_the_bindings_is_whole_for_others():
    code = (
        "from corral.llama.library import lib; import llama_cpp; "
        "print(llama_cpp.llama_vocab_p is lib.llama_vocab_p, llama_cpp.Llama.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("True Llama\n", "")


def test_the_pin_of_libllama_is_read_before_anything_is_installed():
    code = f"import runpy; print(runpy.run_path({libllama.__file__!r})['VERSION'])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout.strip(), done.stderr) == (libllama.VERSION, "")
