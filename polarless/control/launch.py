"""What a node is told when it is started: its settings, as the JSON file that control writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from polarless.config import HOST, ClusterConfig
from polarless.control.membership import FENCED, HUNG, SERVING, Member, Membership
from polarless.wire.control import COMPUTE, HOME, MEMORY, PACKAGES, PROXY, STORAGE

RESERVE_MB_MIN: Final = 1024
RESERVE_TIMES: Final = 4


def node_config(
    member: Member,
    members: Membership,
    settings: ClusterConfig,
    *,
    cluster: bytes,
    data: str,
    run: str,
    home_epoch: int,
    serve_fd: int,
    topology: dict[str, Any],
) -> dict[str, Any]:
    """The settings of ``member``; its own address and those of storage and home are decided."""
    home = members.home()
    config: dict[str, Any] = {
        "node": member.name,
        "cluster": cluster.hex(),
        "host": HOST,
        "port": port_of(member.address),
        "data": data,
        "verify": settings.verify,
        "storage": members.storage().address,
        "epoch": member.epoch,
        "home_epoch": home_epoch,
        "home_address": home.address if home else "",
    }
    if member.kind == STORAGE:
        del config["storage"]
    elif member.kind == MEMORY:
        config["home"] = member.role == HOME
        config["memory_mb"] = settings.memory_node_mb
        # Addresses cost nothing, and a pool that has none left cannot grow without a restart.
        config["reserve_mb"] = max(RESERVE_MB_MIN, RESERVE_TIMES * settings.memory_node_mb)
    elif member.kind == PROXY:
        config |= {
            "serve_fd": serve_fd,
            "share_path": f"{run}/{member.name}.sock",
            "sql_port": port_of(member.sql),
            "topology": topology,
        }
    elif member.kind == COMPUTE:
        config |= {
            "role": member.role,
            "home": config["home_address"],
            "serve_fd": serve_fd if members.url_kind == COMPUTE else -1,
            "share_path": f"{run}/{member.name}.sock",
            "port": port_of(member.address),
            "sql_port": port_of(member.sql),
            "cache_mb": settings.cache_mb,
            "shared_memory": settings.shared_memory,
            "prefetch": settings.prefetch,
            "remote_latency_us": settings.remote_latency_us,
        }
    return config


def topology(members: Membership, leaving: Iterable[str]) -> dict[str, Any]:
    """The compute nodes, as a proxy is told of them."""
    computes = [m for m in members.of_kind(COMPUTE) if m.has_process and m.sql]
    names = {member.name for member in computes}
    return {
        "nodes": {member.name: member.sql for member in computes},
        "serving": [member.name for member in computes if member.state == SERVING],
        "hung": [member.name for member in computes if member.state in (HUNG, FENCED)],
        "draining": [name for name in leaving if name in names],
    }


ENVIRONMENT: Final = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def compute_command(python: str, config: str) -> list[str]:
    """How a compute node's process is started, be it one that has to wait for its name."""
    return [python, "-P", "-m", PACKAGES[COMPUTE], "--config", config]


def command(python: str, member: Member, config_path: str) -> list[str]:
    """How the process is started. ``-P``: not a module of that name in the user's folder."""
    return [python, "-P", "-m", PACKAGES[member.kind], "--config", config_path]


def port_of(address: str) -> int:
    """The port of ``host:port``; 0 if there is none."""
    return int(address.rpartition(":")[2] or 0)
