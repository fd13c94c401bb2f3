"""From what a person types to a path: a local file or directory, or a model on the hub or in its cache.

huggingface-hub does the work, so ``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` mean
what they mean everywhere, downloads resume, and what other programs fetched is found.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from poot_core import CheckpointError

__all__ = ["CachedModel", "DownloadProgress", "list_cached", "remove_cached", "resolve_model"]

DownloadProgress = Callable[[str, int, int | None], None]
"""Told what is fetched, how many bytes there are, and how many there will be where that is known."""

_HUB_ID = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[\w./-]+))?$", re.ASCII)
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model in the hub's cache.

    Attributes:
        name: As ``resolve_model`` takes it: ``owner/name``, or ``owner/name:file`` for a GGUF.
        path: The file, or the directory.
        nbytes: Bytes on disk.
        modified: When it was fetched, seconds since 1970.
    """

    name: str
    path: Path
    nbytes: int
    modified: float


def resolve_model(name: str | Path, progress: DownloadProgress | None = None) -> Path:
    """Return the local path of a model, downloading it from the Hugging Face hub if need be.

    Args:
        name: A path of a directory, a .gguf or a .safetensors file; or ``owner/name`` for a
            repository of safetensors or of one GGUF; or ``owner/name:file.gguf`` for one file of a
            repository, or ``owner/name:Q4_K_M`` for the one GGUF with that in its name.
        progress: Told how a download goes; None leaves the hub's own bars on stderr.

    Raises:
        CheckpointError: If it is no path and no hub id, or the hub does not give it.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    match = _HUB_ID.match(str(name))
    if match is None or (path.suffix in {".gguf", ".safetensors"} and match["file"] is None):
        raise CheckpointError(
            f"no model at {str(name)!r}; give the path of a directory, a .gguf or a .safetensors "
            "file, or a hub id such as owner/name or owner/name:file.gguf",
            path=str(name),
        )
    repo, file = match["repo"], match["file"]
    try:
        return _download(repo, file, {} if progress is None else {"tqdm_class": _bar(progress)})
    except CheckpointError:
        raise
    except Exception as error:  # the hub's own tree, its HTTP client's, and the file system's
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"the hub does not give {repo}{':' + file if file else ''}: {detail}", path=repo
        ) from error


def _download(repo: str, file: str | None, more: dict[str, Any]) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    if file is not None and Path(file).suffix:
        return Path(hf_hub_download(repo, file, **more))
    try:
        names = HfApi().list_repo_files(repo)
    except HfHubHTTPError:  # it is there and says no
        raise
    except Exception:  # offline on purpose, or there is no way to it
        cached = _cached_path(repo, file)
        if cached is None:
            raise
        return cached
    if file is None and any(name.endswith(".safetensors") for name in names):
        return Path(snapshot_download(repo, allow_patterns=_WANTED, **more))
    return Path(hf_hub_download(repo, _pick(repo, file, names), **more))


def _pick(repo: str, part: str | None, names: list[str]) -> str:
    """Return the one GGUF of a repository, or the one with ``part`` in its name.

    Raises:
        CheckpointError: If there is none or several.
    """
    every = [name for name in names if name.endswith(".gguf")]
    found = [name for name in every if part is None or part.lower() in name.lower()]
    if len(found) == 1:
        return found[0]
    choices = "; name one as " + ", ".join(f"{repo}:{n}" for n in found or every) if every else ""
    what = "holds no safetensors" if part is None else f"holds {len(found)} GGUF files {part!r}"
    raise CheckpointError(f"{repo} {what}{choices}", path=repo)


def _bar(progress: DownloadProgress) -> Any:
    from huggingface_hub.utils import tqdm

    base: Any = tqdm

    class Bar(base):
        """Tells of its progress in place of drawing it."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            # Off a terminal it would be silent, and count nothing.
            super().__init__(*arguments, **{**options, "disable": False, "file": StringIO()})

        def display(self, *arguments: Any, **options: Any) -> bool:
            del arguments, options
            return True

        def update(self, n: float | None = 1) -> bool | None:
            done = super().update(n)
            if self.unit == "B":  # there is a bar that counts files, too
                progress(
                    str(self.desc), int(self.n), None if self.total is None else int(self.total)
                )
            return done

    return Bar


def list_cached() -> list[CachedModel]:
    """Return the models in the hub's cache, by name; the directory is ``HF_HOME``'s."""
    found: list[CachedModel] = []
    for repo in _cached_repos():
        revision = max(repo.revisions, key=lambda each: each.last_modified, default=None)
        if revision is None:
            continue
        if any(file.file_name.endswith(".safetensors") for file in revision.files):
            found.append(
                CachedModel(
                    name=repo.repo_id,
                    path=Path(revision.snapshot_path),
                    nbytes=revision.size_on_disk,
                    modified=revision.last_modified,
                )
            )
        found += [
            CachedModel(
                name=f"{repo.repo_id}:{file.file_path.relative_to(revision.snapshot_path).as_posix()}",
                path=Path(file.file_path),
                nbytes=file.size_on_disk,
                modified=file.blob_last_modified,
            )
            for file in revision.files
            if file.file_name.endswith(".gguf")
        ]
    return sorted(found, key=lambda model: model.name)


def remove_cached(name: str) -> int:
    """Delete a model from the hub's cache and return the bytes that became free.

    Args:
        name: ``owner/name`` deletes all of the repository, ``owner/name:file`` one file of it.

    Raises:
        CheckpointError: If it is not there.
    """
    repo_id, _, file = name.partition(":")
    for repo in _cached_repos():
        if repo.repo_id != repo_id:
            continue
        if not file:
            # Not by revision: copies of a repository have the same ones.
            shutil.rmtree(repo.repo_path)
            return int(repo.size_on_disk)
        freed = 0
        for revision in repo.revisions:
            for cached in revision.files:
                relative = cached.file_path.relative_to(revision.snapshot_path).as_posix()
                if relative == file:
                    freed = max(freed, cached.size_on_disk)
                    for path in {cached.file_path, cached.blob_path}:
                        path.unlink(missing_ok=True)
        if freed:
            return freed
    known = ", ".join(model.name for model in list_cached()) or "none"
    raise CheckpointError(f"the cache holds no {name}; it holds: {known}", path=name)


def _cached_repos() -> list[Any]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.constants import HF_HUB_CACHE

    if not os.path.isdir(HF_HUB_CACHE):
        return []
    return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]


def _cached_path(repo: str, file: str | None) -> Path | None:
    """Return where the cache has a model, or None."""
    found = [model for model in list_cached() if model.name.partition(":")[0] == repo]
    if file is not None:
        found = [model for model in found if file.lower() in model.name.partition(":")[2].lower()]
    return found[0].path if len(found) == 1 or (found and ":" not in found[0].name) else None
