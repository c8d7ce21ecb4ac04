"""A node without a database in it: obeys control like a real one and answers with its name.

Started as ``python -m storage``, ``memory_pool`` or ``compute`` by packages that
`tests.cluster.stubs` puts in front of the real ones. A client that connects to the URL or to the
node's own port is told ``NAME ROLE EPOCH`` by a compute node that may serve it. What a fault does
to control can so be tested in a second. A file ``DATA/NODE.fault`` makes it misbehave: ``refuse``
(promote fails), ``exit N`` (at start).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, cast

from polarless.control.agent import Agent, share_listener
from polarless.errors import Fenced, Retry
from polarless.net import rpc
from polarless.net.system import run, system_world
from polarless.wire.control import EXIT_FENCED


class Stub(rpc.Service):
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.role = str(config.get("role", "home" if config.get("home") else "memory"))
        self.epoch = int(config["epoch"])
        self.home_epoch = int(config["home_epoch"])
        self.nodes: dict[str, Any] = {}
        self.calls: list[str] = []
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.agent = Agent(
            ping=self.ping,
            status=lambda: {"calls": self.calls, "nodes": sorted(self.nodes)},
            stop=lambda: self.end(0),
            methods={
                "promote": self.promote,
                "home": self.home,
                "fenced": self.fenced,
                "become_home": self.become_home,
                "attach_node": self.attach_node,
                "detach_node": self.detach_node,
                "tail": lambda call: call.answer([0, 0, 0, 0, 0, self.stored_epoch()]),
            },
        )

    def ping(self) -> dict[str, Any]:
        return {
            "state": "serving", "role": self.role, "epoch": self.epoch,
            "home_epoch": self.home_epoch, "mark": 1,
        }  # fmt: skip

    def fault(self) -> str:
        path = Path(self.config["data"]) / f"{self.config['node']}.fault"
        return path.read_text() if path.exists() else ""

    def stored_epoch(self) -> int:
        """Storage keeps the fence in a file that all stubs see."""
        path = Path(self.config["data"]) / "fence"
        return int(path.read_text()) if path.exists() else 0

    def fence(self, epoch: int) -> None:
        if epoch < self.stored_epoch():
            raise Fenced(f"epoch {epoch} is below {self.stored_epoch()}")
        (Path(self.config["data"]) / "fence").write_text(str(epoch))

    def on_call(self, peer: rpc.Peer, call: rpc.Call) -> None:
        if call.method != "ping":
            self.calls.append(call.method)
        self.agent.on_call(call)

    def promote(self, call: rpc.Call) -> None:
        if self.fault() == "refuse":
            raise Retry("refused by the test")
        epoch, _ = call.args
        self.fence(epoch)
        self.role, self.epoch = "rw", epoch
        self.accepting = asyncio.ensure_future(self.accept(call))

    async def accept(self, call: rpc.Call | None) -> None:
        """Serve the URL's socket."""
        listener = await system_world().network.listen(
            lambda: Greeter(self), "", 0, inherited_fd=self.config["serve_fd"]
        )
        assert listener.port
        if call is not None:
            call.answer({"fence_ms": 1.0})

    def home(self, call: rpc.Call) -> None:
        _, self.home_epoch, _ = call.args
        call.answer()

    def fenced(self, call: rpc.Call) -> None:
        call.answer()
        self.end(EXIT_FENCED)

    def become_home(self, call: rpc.Call) -> None:
        self.home_epoch, self.epoch, self.nodes = call.args
        self.role = "home"
        call.answer({"scan_ms": 1.0})

    def attach_node(self, call: rpc.Call) -> None:
        name, address, _ = call.args
        self.nodes[name] = address
        call.answer()

    def detach_node(self, call: rpc.Call) -> None:
        self.nodes.pop(call.args[0], None)
        call.answer()

    def end(self, code: int) -> None:
        if not self.done.done():
            self.done.set_result(code)


class Greeter(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self.stub = stub

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = f"{self.stub.config['node']} {self.stub.role} {self.stub.epoch}\n"
        writable = cast("asyncio.WriteTransport", transport)
        writable.write(line.encode())
        writable.close()


async def main(config: dict[str, Any]) -> int:
    world = system_world()
    stub = Stub(config)
    fault = stub.fault()
    if fault.startswith("exit"):
        return int(fault.split()[1])
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stub.end, 0)
    cluster = bytes.fromhex(config["cluster"])
    host = config["host"]
    listener = await rpc.serve(
        world.network, stub, clock=world.clock, cluster=cluster, host=host, port=config["port"]
    )
    ready = {"address": f"{host}:{listener.port}"}
    if "serve_fd" in config:
        await share_listener(config["share_path"], config["serve_fd"])
        own = await world.network.listen(lambda: Greeter(stub), host, config["sql_port"])
        ready["sql"] = f"{host}:{own.port}"
        if stub.role == "rw":
            try:
                stub.fence(stub.epoch)
            except Fenced:
                return EXIT_FENCED
            await stub.accept(None)
    print("READY " + json.dumps(ready), flush=True)
    return await stub.done


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    sys.exit(run(main(json.loads(parser.parse_args().config.read_text()))))
