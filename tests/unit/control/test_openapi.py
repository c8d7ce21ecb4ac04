"""The document says what is served: the same routes, and who needs the token."""

from __future__ import annotations

from typing import Any, cast

from polarless.control.http import OPEN, Api
from polarless.control.openapi import OPERATIONS, document


def test_every_operation_is_served_and_described() -> None:
    api = Api(cast(Any, None), "token")
    served = set(api._handlers())
    assert served == {(operation.method, operation.path) for operation in OPERATIONS}
    paths = document("1")["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == served


def test_only_what_says_nothing_about_the_cluster_is_open() -> None:
    assert {"/livez", "/readyz", "/openapi.json"} == OPEN
    paths = document("1")["paths"]
    for operation in OPERATIONS:
        described = paths[operation.path][operation.method]
        assert bool(described["security"]) is operation.needs_token
        assert ("401" in described["responses"]) is operation.needs_token
