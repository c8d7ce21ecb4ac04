"""Control's HTTP API: JSON over loopback, with the token of ``DATA/control.json``.

    GET  /livez                   200 while control runs                      no token needed
    GET  /readyz                  200 if a query would succeed, else 503      no token needed
    GET  /openapi.json            this list for programs              no token needed
    GET  /status                  what ``polarless status --json`` prints
    GET  /events                  decisions that are kept in memory
    GET  /nodes/NAME              a node's own counters
    POST /nodes/NAME/check        what is wrong with the trees that a compute node can see
    POST /failover {"to": name?}  the event that says how it went
    POST /scale {"ro": number?, "memory_nodes": number?, "pool_mb": number?}
                                  the same and {"seconds"} once it is so
    GET  /autoscale               {"on", "policy", "seen"}
    POST /autoscale {policy?}     {"ro_min", "ro_max", "pool_mb_min", "pool_mb_max"}; {}: off
    POST /restart {"role": role?} {"restarted", "seconds"} once all were restarted in turn
    POST /sleep                   {"asleep"}: all compute is released until a client comes
    POST /down                    {"killed": [names]} once all nodes have ended

    Authorization: Bearer TOKEN

An error is ``{"error": {"message", "hint", "sqlstate"}}``: 400 for a mistake of the caller, 503 for
what may work later, else 500.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from aiohttp import web

from polarless.config import HOST
from polarless.control.autoscale import parse_policy
from polarless.control.openapi import OPERATIONS, document
from polarless.control.service import Service
from polarless.errors import CallerMistake, PolarlessError, Retry

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN = frozenset(operation.path for operation in OPERATIONS if not operation.needs_token)
BODY_BYTES_MAX = 64 * 1024


class _OneLine(logging.Filter):
    """What strangers send to the port is no error of ours: one line, and no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            error = record.exc_info[1]
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = f"refused: {type(error).__name__}", ()
        return True


logging.getLogger("aiohttp.server").addFilter(_OneLine())


class Api:
    """The routes over one `Service`. `start` listens, ``address`` is where."""

    def __init__(self, service: Service, token: str) -> None:
        self.address = ""
        self._service = service
        self._token = token
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        for operation in OPERATIONS:
            app.router.add_route(operation.method, operation.path, self._handlers()[operation[:2]])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    def _handlers(self) -> dict[tuple[str, str], Handler]:
        return {
            ("get", "/livez"): self._livez,
            ("get", "/readyz"): self._readyz,
            ("get", "/openapi.json"): self._openapi,
            ("get", "/status"): self._status,
            ("get", "/events"): self._events,
            ("get", "/nodes/{name}"): self._node,
            ("post", "/nodes/{name}/check"): self._check,
            ("get", "/autoscale"): self._autoscaling,
            ("post", "/autoscale"): self._autoscale,
            ("post", "/failover"): self._failover,
            ("post", "/scale"): self._scale,
            ("post", "/restart"): self._restart,
            ("post", "/sleep"): self._sleep,
            ("post", "/down"): self._down,
        }

    async def start(self, port: int) -> None:
        """Listen on loopback."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port, shutdown_timeout=1.0)
        await site.start()
        self.address = f"{HOST}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Answer what is under way, and end."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path not in OPEN and not hmac.compare_digest(
            given.encode(), self._token.encode()
        ):
            hint = "send the token of DATA/control.json as Authorization: Bearer TOKEN"
            return _failure(401, CallerMistake("no valid token", hint=hint))
        try:
            return await handler(request)
        except CallerMistake as error:
            return _failure(400, error)
        except PolarlessError as error:
            return _failure(503 if isinstance(error, Retry) else 500, error)

    async def _livez(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        ready = self._service.is_ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(document(version("polarless")))

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.status())

    async def _events(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.events())

    async def _check(self, request: web.Request) -> web.Response:
        return web.json_response(await self._service.check_node(request.match_info["name"]))

    async def _node(self, request: web.Request) -> web.Response:
        return web.json_response(await self._service.node_status(request.match_info["name"]))

    async def _failover(self, request: web.Request) -> web.Response:
        body = await _body(request)
        target = body.get("to")
        if target is not None and not isinstance(target, str):
            raise CallerMistake("'to' must be a node's name")
        return web.json_response(await self._service.switch(target))

    async def _scale(self, request: web.Request) -> web.Response:
        body = await _body(request)
        for key, value in body.items():
            if key not in ("ro", "memory_nodes", "pool_mb"):
                raise CallerMistake(f"there is nothing called {key!r} to scale")
            if type(value) is not int:
                raise CallerMistake(f"{key!r} must be a number")
        if not body:
            raise CallerMistake("say what is to be scaled: ro, memory_nodes or pool_mb")
        return web.json_response(await self._service.scale(**body))

    async def _autoscaling(self, request: web.Request) -> web.Response:
        return web.json_response(self._service.scaler.status())

    async def _autoscale(self, request: web.Request) -> web.Response:
        body = await _body(request)
        try:
            policy = parse_policy(body) if body else None
        except ValueError as error:
            raise CallerMistake(str(error)) from None
        return web.json_response(self._service.autoscale(policy))

    async def _restart(self, request: web.Request) -> web.Response:
        role = (await _body(request)).get("role")
        if role is not None and not isinstance(role, str):
            raise CallerMistake("'role' must be a role or a node's name")
        return web.json_response(await self._service.restart(role))

    async def _sleep(self, request: web.Request) -> web.Response:
        return web.json_response(await self._service.sleep())

    async def _down(self, request: web.Request) -> web.Response:
        killed = await self._service.down()
        # Answered before control ends: `close` waits for it.
        self._service.leave()
        return web.json_response({"killed": killed})


async def _body(request: web.Request) -> dict[str, Any]:
    text = await request.text()
    try:
        values = json.loads(text or "{}")
    except ValueError:
        raise CallerMistake("the body is not JSON") from None
    if not isinstance(values, dict):
        raise CallerMistake("the body is not a JSON object")
    return values


def _failure(status: int, error: PolarlessError) -> web.Response:
    fields = {"message": error.message, "hint": error.hint, "sqlstate": error.sqlstate}
    return web.json_response({"error": fields}, status=status)
