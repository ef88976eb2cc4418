"""Damaged files tried out: what the check in Python says, what becomes of an engine, and of the front.

The engines run in a process of their own (`loading.py`), so that none of them can harm who asks.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from corral.core.errors import CorralError
from corral.gguf.model_file import check_model_file
from corral.gguf.preflight import check_adapter, read_header
from corral.llama.multimodal import _check_file as check_projector
from tests.soak.loading import Job, Outcome
from tests.soak.mutation import Mutant, sample
from tests.tools import tiny_encoders, tiny_models, tiny_modifiers, tiny_vision

SEED = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A good file, what it is used as, and the check that stands in front of native code."""

    name: str
    path: Path
    model: Path
    role: str  # a field of `Job`
    check: Callable[[Path], object]

    def job(self, path: Path) -> Job:
        given = {"model": str(self.model), self.role: str(path)}
        return Job(**given)


@dataclass(slots=True)
class Counts:
    """Mutable: what became of the files made from one. `problems` is empty if all went as promised."""

    name: str
    n_checked: int = 0
    n_passed: int = 0  # the check in Python
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)

    def note(self, mutant: Mutant, outcome: Outcome) -> None:
        crash = f" ({outcome.reason})" if outcome.engine == "crashed" else ""
        self.outcomes[f"engine {outcome.engine}{crash}"] += 1
        if outcome.front:
            self.outcomes[f"front {outcome.front.split(':')[0]}"] += 1
        is_said = outcome.engine != "refused" or (outcome.reason and "\n" not in outcome.reason)
        is_alive = not outcome.front or outcome.front.startswith(("fine", "refused"))
        if outcome.engine == "hung" or not is_said or not is_alive:
            self.problems.append(f"{self.name}: {mutant.name}: {outcome}")


def sources(folder: Path) -> list[Source]:
    """A model, another kind of vocabulary, an encoder, a projector and an adapter."""
    text = tiny_models.llama_bpe(folder)
    spm, encoder = tiny_models.llama_spm(folder), tiny_encoders.bert_embed(folder)
    adapter, projector = tiny_modifiers.lora_a(folder), tiny_vision.llava_mmproj(folder)
    return [
        Source("text model", text, text, "model", check_model_file),
        Source("text model, SentencePiece", spm, spm, "model", check_model_file),
        Source("embedding model", encoder, encoder, "model", check_model_file),
        Source("projector", projector, text, "mmproj", lambda path: check_projector(str(path))),
        Source("LoRA adapter", adapter, text, "lora", lambda path: check_adapter(read_header(path), "llama")),
    ]


def try_corpus(folder: Path, n_checked: int, n_loaded: int, seed: int = SEED) -> list[Counts]:
    """So many damaged files of each source are checked, and so many of these are loaded."""
    with _loader() as load:
        return [_try_source(source, load, folder, n_checked, n_loaded, seed) for source in sources(folder)]


def mutant_of(source: Path, name: str) -> bytes:
    """The content of one damaged file by its name."""
    found = (mutant for mutant in sample(source.read_bytes(), SEED, 1 << 30) if mutant.name == name)
    return next(found).content


Load = Callable[[Job], Outcome]


def _try_source(source: Source, load: Load, folder: Path, n_checked: int, n_loaded: int, seed: int) -> Counts:
    counts = Counts(source.name)
    path = folder / "damaged.gguf"
    for i, mutant in enumerate(sample(source.path.read_bytes(), seed, n_checked)):
        path.unlink(missing_ok=True)  # the last one may still be mapped
        path.write_bytes(mutant.content)
        _check(source, path, mutant, counts)
        if i < n_loaded:
            counts.note(mutant, load(source.job(path)))
    return counts


def _check(source: Source, path: Path, mutant: Mutant, counts: Counts) -> None:
    counts.n_checked += 1
    try:
        source.check(path)
        counts.n_passed += 1
    except CorralError as error:
        if not error.message or "\n" in error.message:
            counts.problems.append(f"{source.name}: {mutant.name}: the check says {error.message!r}")
    except Exception as error:
        counts.problems.append(f"{source.name}: {mutant.name}: the check raised {error!r}")


@contextmanager
def _loader() -> Iterator[Load]:
    command = [sys.executable, "-m", "tests.soak.loading"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def load(job: Job) -> Outcome:
            stdin.write(json.dumps(asdict(job)) + "\n")
            stdin.flush()
            return Outcome(**json.loads(stdout.readline()))

        yield load


def render(found: list[Counts]) -> str:
    lines = []
    for counts in found:
        lines.append(f"{counts.name}: {counts.n_checked} damaged files, {counts.n_passed} pass the check")
        lines += [f"  {n:6} {what}" for what, n in counts.outcomes.most_common()]
        lines += [f"PROBLEM: {problem}" for problem in counts.problems]
    return "\n".join(lines)


def run_corpus(n_checked: int, n_loaded: int) -> list[Counts]:
    """In a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        return try_corpus(Path(folder), n_checked, n_loaded)
