"""Find, describe and remove models in the user's cache.

Covers files from URLs and hubs, complete or partial, and other files in the same directory. Only headers
are read, without native code.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

import msgspec
from filelock import Timeout

from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError, InvalidRequest
from corral.core.settings import DEFAULT_UBATCH
from corral.gguf.file_type import FILE_TYPES, TRANSCODED
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import part_names
from corral.gguf.preflight import GgufHeader, read_header
from corral.gguf.reader import Incomplete
from corral.memory.bound import upper_bound
from corral.models.files.download import lock_of, recorded_version
from corral.models.files.fetch import PART, read_version_file, version_path
from corral.models.files.hub import hub_dir
from corral.models.files.hub_choice import choose_model, quant_of
from corral.models.files.remote_file import Version
from corral.models.files.transfer import sized

NEED_CTX = 4096
_HASHED = re.compile(r"[0-9a-f]{16}-(.+)", re.DOTALL)
_REPO = "models--"
_MADE = {"lora-base-": "made for --lora-base", TRANSCODED: "made by --transcode"}


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the cache. `paths`: its parts in load order; `others`: files that are removed along with
    them."""

    name: str
    paths: tuple[str, ...]
    n_bytes: int
    source: str = ""
    time: float = 0.0
    architecture: str = ""
    quantization: str = ""
    n_params: int = 0
    n_needed: int = 0  # bytes of memory at most, with a context of `NEED_CTX` tokens; 0: unknown
    fault: str = ""  # why the file cannot be loaded
    is_partial: bool = False
    others: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        return self.fault or f"{self.architecture} {self.quantization}, {_short(self.n_params)} parameters"


def find_models() -> list[CachedModel]:
    """Return all models in the cache, sorted by name."""
    try:
        found = [*_find_flat(cache_dir()), *_find_hub()]
    except OSError as error:
        raise CorralError(f"cannot read the cache: {error.filename}: {error.strerror}") from None
    names = [model.name for model in found]
    distinct = [
        msgspec.structs.replace(model, name=Path(model.paths[0]).name)
        if names.count(model.name) > 1
        else model
        for model in found
    ]
    return sorted(distinct, key=lambda model: model.name.lower())


def remove_model(model: CachedModel) -> None:
    """Remove a model's files. Raises CorralError while they are being downloaded."""
    try:
        with ExitStack() as stack:
            for path in model.paths:
                target = os.path.realpath(path).removesuffix(PART)
                stack.enter_context(lock_of(Path(target)).acquire(timeout=0))
            for path in (*model.paths, *model.others):
                Path(path).unlink(missing_ok=True)
            for storage in _repositories():
                files = [*(storage / "blobs").glob("*"), *(storage / "snapshots").rglob("*")]
                if not any(path.is_file() for path in files):
                    shutil.rmtree(storage)
    except Timeout:
        raise CorralError(f"'{model.name}' is being downloaded") from None
    except OSError as error:
        raise CorralError(f"cannot remove '{model.name}': {error.strerror}") from None


def _find_flat(directory: Path) -> Iterator[CachedModel]:
    """Find files directly in the cache directory."""
    files = [path for path in _entries(directory) if path.is_file()]
    for parts in _grouped(path for path in files if path.suffix == ".gguf" or version_path(path) in files):
        hashed = _HASHED.fullmatch(parts[0].name)
        name = hashed[1] if hashed else parts[0].name
        if name.endswith(PART):
            yield _describe_part(name, parts[0])
            continue
        version = recorded_version(parts[0])
        made = next((why for start, why in _MADE.items() if parts[0].name.startswith(start)), "")
        every = [Path(part) for part in part_names(str(parts[0]))]
        # Metadata files that Corral and llama-server write next to a model.
        others = [*map(version_path, every), *(path.with_name(f"{path.name}.etag") for path in every)]
        yield _describe(name, parts, version.url if version else made, others)


def _find_hub() -> Iterator[CachedModel]:
    """Find files of repositories in the cache layout of huggingface_hub."""
    for storage in _repositories():
        repo = storage.name.removeprefix(_REPO).replace("--", "/", 1)
        snapshots = _snapshots(storage)
        names = {
            path.relative_to(root) for root in snapshots for path in root.rglob("*.gguf") if path.is_file()
        }
        for parts in _grouped(names):
            yield _describe_hub_model(repo, snapshots, sorted(map(str, names)), list(map(str, parts)))
        linked = {path.resolve() for root in snapshots for path in root.rglob("*")}
        for path in _entries(storage / "blobs"):
            if path.name.endswith(PART):
                url = (read_version_file(path) or Version()).url
                name = unquote(url.rpartition("/")[2]) or path.name.removesuffix(PART)
                yield _describe_part(f"{repo}/{name}{PART}", path)
            elif path.resolve() not in linked and path.suffix != ".json":
                yield _describe(f"{repo}/{path.name}{PART}", [path], "", [version_path(path)], "leftover")


def _describe_hub_model(
    repo: str, snapshots: Sequence[Path], names: Sequence[str], parts: Sequence[str]
) -> CachedModel:
    newest = next(root for root in snapshots if (root / parts[0]).exists())
    links = [root / part for root in snapshots for part in parts if (root / part).exists()]
    blobs = {link.resolve() for link in links}
    shared = {path.resolve() for root in snapshots for path in root.rglob("*") if path not in links}
    quant = quant_of(parts[0])
    is_default = quant and choose_model(names, quant) == parts[0]
    name = f"{repo}:{quant}" if is_default else f"{repo}/{parts[0]}"
    paths = [newest / part for part in parts if (newest / part).exists()]
    model = _describe(name, paths, f"hub {repo}", [*links, *(blobs - shared)])
    return msgspec.structs.replace(model, n_bytes=sum(blob.stat().st_size for blob in blobs))


def _describe(
    name: str, parts: Sequence[Path], source: str, others: Iterable[Path], fault: str = ""
) -> CachedModel:
    if not fault and (missing := len(part_names(parts[0].name)) - len(parts)):
        fault = f"{missing} of its parts missing"
    model = CachedModel(
        name=name,
        paths=tuple(map(str, parts)),
        n_bytes=sum(part.stat().st_size for part in parts),
        source=source,
        time=max(part.stat().st_mtime for part in parts),
        fault=fault,
        is_partial=bool(fault),
        others=tuple(str(path) for path in others if path not in parts),
    )
    replace = msgspec.structs.replace
    if fault:
        return model
    try:
        headers = [read_header(part) for part in parts]
    except Incomplete as error:
        fault = f"incomplete, {sized(error.n_bytes)} of {sized(error.n_wanted)}"
        return replace(model, fault=fault, is_partial=True)
    except (InvalidRequest, OSError) as error:
        reason = error.message if isinstance(error, InvalidRequest) else error.strerror
        return replace(model, fault=f"damaged: {reason}")
    return replace(
        model,
        architecture=headers[0].architecture or "unknown",
        quantization=_quantization(headers),
        n_params=sum(math.prod(tensor.shape) for header in headers for tensor in header.tensors.values()),
        n_needed=_needed(headers),
    )


def _needed(headers: Sequence[GgufHeader]) -> int:
    if not any(header.tensors for header in headers):
        return 0
    return upper_bound(headers, n_ctx=NEED_CTX, n_ubatch=DEFAULT_UBATCH, n_seq=1, n_value_bytes=2) or 0


def _describe_part(name: str, path: Path) -> CachedModel:
    """Describe a partial download."""
    n_bytes, version = path.stat().st_size, read_version_file(path) or Version()
    of = f", {n_bytes / version.n_bytes:.0%} of {sized(version.n_bytes)}" if version.n_bytes else ""
    return _describe(name, [path], version.url, [version_path(path)], f"partial{of}")


def _quantization(headers: Sequence[GgufHeader]) -> str:
    declared = headers[0].metadata.get("general.file_type")
    if isinstance(declared, int) and declared in FILE_TYPES:
        return FILE_TYPES[declared]
    sizes: dict[int, int] = {}
    for tensor in (tensor for header in headers for tensor in header.tensors.values()):
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
    return GGML_TYPES[max(sizes, key=sizes.__getitem__)].name.upper() if sizes else "without tensors"


def _grouped(paths: Iterable[Path]) -> list[list[Path]]:
    """Group the parts of each model."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(paths):
        groups.setdefault(part_names(str(path))[0], []).append(path)
    return list(groups.values())


def _repositories() -> list[Path]:
    return [path for path in _entries(hub_dir()) if path.name.startswith(_REPO)]


def _snapshots(storage: Path) -> list[Path]:
    """Return the snapshots of a repository: the one that `main` points to first, then the newest."""
    try:
        main = (storage / "refs" / "main").read_text().strip()
    except OSError:
        main = ""
    roots = [root for root in _entries(storage / "snapshots") if root.is_dir()]
    return sorted(roots, key=lambda root: (root.name != main, -root.stat().st_mtime))


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _short(n: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)
