"""How start-up and the mesh grow with ranks that do nothing else, all on this machine.

    .venv/bin/python benchmarks/startup/run.py [--ranks 16 64 256] [--replicas 1 32] [--rounds 3]

Ranks are forked from one process that has torch loaded, and meet by a TCP store that it holds. With
`--all-connected` every two of them have a socket, however many they are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers the backend)

from weft.runtime.ranks import tree
from weft.runtime.ranks.members import Members
from weft.runtime.ranks.mesh import Mesh
from weft.runtime.ranks.rendezvous import meet

DEADLINE = 300.0
GATHERINGS = 10
SHARE = bytes(64)


class Setting(NamedTuple):
    """How many ranks there are, in how many replicas of one pipeline."""

    ranks: int
    replicas: int

    def neighbours(self) -> Iterator[tuple[int, int]]:
        """Ranks that exchange activations, and copies of a stage, which exchange gradients."""
        devices = self.ranks // self.replicas
        for rank in range(self.ranks):
            if (rank + 1) % devices:
                yield rank, rank + 1
            for copy in range(rank + devices, self.ranks, devices):
                yield rank, copy


# a rank


def live(setting: Setting, rank: int, port: int, folder: Path) -> None:
    """Meet, gather, and notice that one rank dies; write down how long each took."""
    store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=DEADLINE))
    dist.init_process_group("fake", store=store, rank=rank, world_size=setting.ranks)
    began, worked = time.monotonic(), time.process_time()
    met = meet(Members.all(), DEADLINE, setting.neighbours())
    found = {"began": began, "met": time.monotonic(), "worked": time.process_time() - worked}
    mesh = met.mesh
    found["sockets"] = len(mesh._peers) + len(mesh._files)
    found["gathering"] = statistics.median(_gathering(mesh) for _ in range(GATHERINGS))
    if rank == setting.ranks // 3:  # one with children, where there is a tree
        _write(folder, rank, found | {"died": time.monotonic()})
        os._exit(0)
    try:
        mesh.wait(lambda: False, lambda: "a death")
    except Exception as error:
        found |= {"noticed": time.monotonic(), "said": str(error)}
    _write(folder, rank, found)
    os._exit(0)


def _gathering(mesh: Mesh) -> float:
    mesh.gather(b"", "the start")
    began = time.perf_counter()
    mesh.gather(SHARE, "a share")
    return time.perf_counter() - began


def _write(folder: Path, rank: int, found: dict[str, Any]) -> None:
    (folder / str(rank)).write_text(json.dumps(found))


# all of them


@contextmanager
def holding_store() -> Iterator[int]:
    """The port of a store in a process of its own, so that none with threads is forked."""
    asked, told = os.pipe(), os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(asked[1])
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(told[1], str(store.port).encode())
        os.read(asked[0], 1)  # until everybody else has ended
        os._exit(0)
    try:
        yield int(os.read(told[0], 16))
    finally:
        for file in (*asked, *told):
            os.close(file)
        os.waitpid(holder, 0)


def once(setting: Setting) -> dict[str, float]:
    """Figures over all ranks of a world that lives once."""
    with tempfile.TemporaryDirectory() as name, holding_store() as port:
        folder, children = Path(name), []
        for rank in range(setting.ranks):
            child = os.fork()
            if child == 0:
                try:
                    live(setting, rank, port, folder)
                finally:
                    os._exit(1)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        found = [json.loads((folder / str(rank)).read_text()) for rank in range(setting.ranks)]
    died = next(one["died"] for one in found if "died" in one)
    noticed = [one for one in found if "noticed" in one]
    assert all(f"device {setting.ranks // 3} died" in one["said"] for one in noticed)
    sockets = [one["sockets"] for one in found]
    return {
        "meet": max(one["met"] for one in found) - max(one["began"] for one in found),
        "cpu": sum(one["worked"] for one in found),
        "most_sockets": max(sockets),
        "sockets": sum(sockets),
        "gather": max(one["gathering"] for one in found),
        "notice": max(one["noticed"] for one in noticed) - died,
    }


def measured(setting: Setting, rounds: int) -> dict[str, float]:
    """Medians over several worlds."""
    found = [once(setting) for _ in range(rounds)]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all-connected", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.all_connected:
        tree.ALL_CONNECTED = max(chosen.ranks)
    print(
        "| ranks | replicas | meet s | CPU s | sockets of a rank | in all | gather ms | death ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for ranks in chosen.ranks:
        for replicas in chosen.replicas:
            found = measured(Setting(ranks, replicas), chosen.rounds)
            print(
                f"| {ranks} | {replicas} | {found['meet']:.2f} | {found['cpu']:.1f}"
                f" | {found['most_sockets']:.0f} | {found['sockets']:.0f}"
                f" | {1e3 * found['gather']:.0f} | {1e3 * found['notice']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
