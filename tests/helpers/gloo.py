"""Starts trainings in several processes that talk over gloo, and reads what they wrote."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import torch
from ddp_worker import LIMIT, run

HELPERS = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(folder: Path, world: int, jobs: dict[str, dict]) -> Path:
    """Run all jobs in one set of ``world`` processes; returns the folder of their results."""
    listed = [{"folder": str(folder / name)} | job for name, job in jobs.items()]
    (folder / "jobs.json").write_text(json.dumps(listed))
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "NODE_RANK": "0", "GROUP_RANK": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HELPERS / "ddp_worker.py"), str(folder / "jobs.json")],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "test"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(world)
    ]
    outputs = [output_of(process) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(outputs)
    return folder


def output_of(process: subprocess.Popen[str]) -> str:
    """What it printed; if it ended and left workers behind that hold its output open, they are ended."""
    try:
        return process.communicate(timeout=LIMIT + 20)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def read(folder: Path) -> list[dict]:
    return [torch.load(path) for path in sorted(folder.glob("rank*.pt"))]


def alone(folder: Path, **job: object) -> dict:
    """The same training in this process."""
    run({"folder": str(folder)} | job, world=1)
    return read(folder)[0]


def global_batches(ranks: list[dict]) -> dict[tuple[int, int], list[int]]:
    return {key: [i for rank in ranks for i in rank["seen"][key]] for key in ranks[0]["seen"]}
