"""``poot pull``, ``ls`` and ``rm``: models of the hub on this machine."""

from __future__ import annotations

import sys
import time

from poot_llm.cli._print import print_json, sizes
from poot_load import list_cached, remove_cached, resolve_model

__all__ = ["run_list", "run_pull", "run_remove"]


def run_pull(model: str) -> None:
    """Fetch a model and print where it lies; the hub's own bars show how it goes."""
    print(resolve_model(model))


def run_list(*, as_json: bool) -> None:
    """Print the models in the cache, those fetched last first."""
    models = sorted(list_cached(), key=lambda model: -model.modified)
    if as_json:
        found = [
            {
                "name": model.name,
                "path": str(model.path),
                "bytes": model.nbytes,
                "modified": model.modified,
            }
            for model in models
        ]
        print_json({"models": found})
        return
    if not models:
        print("no models yet; fetch one with: poot pull owner/name", file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, justify in (("name", "left"), ("size", "right"), ("fetched", "left")):
        table.add_column(column, justify=justify, overflow="fold")  # pyright: ignore[reportArgumentType]
    for model in models:
        day = time.strftime("%Y-%m-%d", time.localtime(model.modified))
        table.add_row(model.name, sizes(model.nbytes), day)
    Console().print(table, markup=False)


def run_remove(models: list[str]) -> None:
    """Delete models from the cache."""
    for model in models:
        print(f"{model}: {sizes(remove_cached(model))} freed")
