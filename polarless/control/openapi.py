"""The HTTP API as an OpenAPI document; `http` serves what is described here, and no more."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Operation(NamedTuple):
    """One route. ``body`` is name -> JSON type; all of them may be left out."""

    method: str
    path: str
    summary: str
    body: dict[str, str]
    needs_token: bool = True


OPERATIONS: Final = (
    Operation("get", "/livez", "200 while control runs", {}, needs_token=False),
    Operation("get", "/readyz", "200 if a query would succeed, else 503", {}, needs_token=False),
    Operation("get", "/openapi.json", "this document", {}, needs_token=False),
    Operation("get", "/status", "who is what, and what was decided last", {}),
    Operation("get", "/events", "decisions that are kept in memory, oldest first", {}),
    Operation("get", "/nodes/{name}", "a node's own counters", {}),
    Operation("post", "/nodes/{name}/check", "walk every tree that a compute node can see", {}),
    Operation("get", "/autoscale", "the policy, and what was seen last", {}),
    Operation(
        "post", "/autoscale", "scale by a policy; without a body by hand",
        dict.fromkeys(("ro_min", "ro_max", "pool_mb_min", "pool_mb_max"), "integer"),
    ),
    Operation("post", "/failover", "make another node the writer", {"to": "string"}),
    Operation(
        "post", "/scale", "have so many readers and memory nodes, and so large a pool",
        dict.fromkeys(("ro", "memory_nodes", "pool_mb"), "integer"),
    ),
    Operation("post", "/restart", "restart all, or those of a role, in turn", {"role": "string"}),
    Operation("post", "/sleep", "release all compute until a client comes", {}),
    Operation("post", "/down", "stop every node, and control", {}),
)  # fmt: skip

_ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "hint": {"type": ["string", "null"]},
                "sqlstate": {"type": ["string", "null"]},
            },
        }
    },
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "polarless control", "version": version},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    failed = {"schema": {"$ref": "#/components/schemas/Error"}}
    meanings = {
        "400": "a mistake of the caller", "401": "no valid token", "500": "it failed",
        "503": "not now; it may work later",
    }  # fmt: skip
    responses: dict[str, Any] = {
        code: {"description": text, "content": {"application/json": failed}}
        for code, text in meanings.items()
        if code != "401" or operation.needs_token
    }
    responses["200"] = {"description": "done", "content": {"application/json": {}}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": responses,
        "security": [{"token": []}] if operation.needs_token else [],
    }
    if "{name}" in operation.path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [name]
    if operation.body:
        properties = {name: {"type": kind} for name, kind in operation.body.items()}
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described
