"""``/docs``: the OpenAPI document as a page for a person, with no script and nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

__all__ = ["docs_page"]


def docs_page(document: dict[str, Any]) -> str:
    """Return the page."""
    schemas = document["components"]["schemas"]
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in tags.items()]
    types = "".join(_type(name, schema) for name, schema in sorted(schemas.items()))
    title = f"{document['info']['title']} {document['info']['version']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        '<link rel="stylesheet" href="/static/docs.css"></head><body><main>'
        f"<h1>{escape(title)}</h1><p>{escape(document['info']['description'])} "
        '<a href="/openapi.json">openapi.json</a></p>'
        f"{''.join(parts)}<h2>Types</h2>{types}</main></body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    rows: list[str] = []
    if body:
        rows.append(f"<tr><th>body</th><td>{_reference(body['schema'])}</td></tr>")
    for status, response in operation["responses"].items():
        kinds = " or ".join(
            f"{escape(kind)} {_reference(content['schema'])}"
            for kind, content in response["content"].items()
        )
        text = escape(response["description"])
        rows.append(f"<tr><th>{escape(status)}</th><td>{text}<br>{kinds}</td></tr>")
    return (
        f'<details><summary><b class="{escape(method)}">{escape(method.upper())}</b> '
        f"<code>{escape(path)}</code> <span>{escape(operation['summary'])}</span></summary>"
        f"<table>{''.join(rows)}</table></details>"
    )


def _type(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><th><code>{escape(field)}</code>{'' if field in required else ' <i>optional</i>'}</th>"
        f"<td>{_reference(each)}</td></tr>"
        for field, each in schema.get("properties", {}).items()
    )
    text = escape(schema.get("description", ""))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> <span>{text}</span>'
        f"</summary><table>{rows}</table></details>"
    )


def _reference(schema: dict[str, Any]) -> str:
    """Return a schema in few words, with links to the types that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(_reference(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_reference(schema.get('items', {}))}"
    if "enum" in schema:
        return escape(", ".join(json.dumps(each) for each in schema["enum"]))
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("minLength", "at least"),
            ("maxLength", "at most"),
        )
        if key in schema
    ]
    return escape(" ".join([str(schema.get("type", "anything")), *bounds]))
