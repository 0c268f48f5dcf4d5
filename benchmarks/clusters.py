"""Real trainings on real clusters on this machine, of which one half is killed with -9 in the middle of a run.

    python benchmarks/clusters.py [--engines ray dask]

The same grid is done by processes of this machine, by a Ray cluster of two nodes and by a Dask scheduler with two
workers. Each cluster loses a node while that node trains. Then every results folder must hold each run once, with the
same metrics and curves to the last bit (times aside), and the tables of its report must be the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from lightning_ubs.experiment.store import ResultsStore

MAIN = "import sys; from lightning_ubs.cli import main; sys.exit(main(sys.argv[1:]))"
GRID = ["data=digits", "selection=[random,ubs]", "fold=[0,1,2,3]", "trainer.max_epochs=30", "report.formats=[csv]"]
RUNS = 8
TIMES = ("epoch_seconds", "selection_seconds")
WAIT = 1800.0

Victim = Callable[[], list[psutil.Process]]


def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that uses one thread, so that sums are the same everywhere."""
    return subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def compare(folder: Path, engine: str, victim: Victim | None = None, **environment: str) -> str:
    """Do the grid; kill ``victim`` as soon as it does a run, and tell what was killed."""
    process = start("-c", MAIN, "compare", *GRID, f"results={folder}", f"engine={engine}", **environment)
    try:
        told = kill_in_a_run(victim, folder, process) if victim else ""
        _, errors = process.communicate(timeout=WAIT)
    finally:
        process.kill()
    if process.returncode != 0:
        raise AssertionError(f"engine={engine}: the grid ended with {process.returncode}: {errors.decode()[-2000:]}")
    return told


def kill_in_a_run(victim: Victim, folder: Path, grid: subprocess.Popen[bytes]) -> str:
    """Wait until a process of the victim holds a claim for a few epochs' time, then kill all of them at once."""
    while grid.poll() is None:
        processes = victim()
        owned = [key for process in processes for key in claims_of(process, folder)]
        if owned:
            time.sleep(0.5)
            owned = [key for process in processes for key in claims_of(process, folder)]
        if owned:
            there = len(ResultsStore(folder).keys())
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return f"{len(processes)} processes killed while they did {owned}, after {there} of {RUNS} runs"
        time.sleep(0.05)
    raise AssertionError("the victim was never given a run.")


def claims_of(process: psutil.Process, folder: Path) -> list[str]:
    """Keys of the runs that a process does now."""
    try:
        files = [Path(file.path) for file in process.open_files()]
    except psutil.Error:
        return []
    return [file.name for file in files if file.parent == folder / "claims"]


@contextlib.contextmanager
def ray_cluster() -> Iterator[tuple[dict[str, str], Victim]]:
    """Two Ray nodes with one processor each; the second is the victim."""
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1)
        raylet = psutil.Process(second.all_processes["raylet"][0].process.pid)
        yield {"RAY_ADDRESS": cluster.address}, lambda: [raylet, *raylet.children(recursive=True)]
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def dask_cluster() -> Iterator[tuple[dict[str, str], Victim]]:
    """A Dask scheduler and two workers, each a process; the second worker is the victim."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as scratch:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        free.close()
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", scratch]
        scheduler = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
        processes = [start("-m", "distributed.cli.dask_scheduler", *scheduler)]
        processes += [start("-m", "distributed.cli.dask_worker", address, *options) for _ in range(2)]
        try:
            wait_for_workers(address)
            yield {"DASK_SCHEDULER_ADDRESS": address}, lambda: [psutil.Process(processes[-1].pid)]
        finally:
            for process in reversed(processes):
                process.kill()
                process.communicate()


def wait_for_workers(address: str) -> None:
    """Return when both workers have come."""
    from distributed import Client

    with Client(address, timeout=WAIT) as client:
        client.wait_for_workers(2, timeout=WAIT)


def outcome(folder: Path) -> dict[str, Any]:
    """What a results folder holds, without times: the runs by key, each once, and the tables of the report."""
    records = [json.loads(record.to_json()) for record in ResultsStore(folder).records()]
    keys = [record["key"] for record in records]
    assert len(keys) == len(set(keys)) == RUNS, f"{len(keys)} records of {len(set(keys))} runs, not of {RUNS}."
    left = {path.name for path in folder.iterdir()} - {"runs.jsonl", "report", "traces"}
    assert not left, f"left behind: {left}."
    for record in records:
        assert record.pop("status") == "ok", record["error"]
        del record["started"], record["seconds"]
        record["curves"] = {name: curve for name, curve in record["curves"].items() if name not in TIMES}
    tables = {path.name: path.read_text() for path in (folder / "report").rglob("*.csv")}
    assert tables, "the report has no tables."
    tables["speed.csv"] = "\n".join(",".join(row.split(",")[:5]) for row in tables["speed.csv"].splitlines())
    return {"runs": {record["key"]: record for record in records}, "tables": tables}


def main() -> None:
    """Do the grid on each engine and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["ray", "dask"], choices=["ray", "dask"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name) / "loky", "loky")
        expected = outcome(Path(name) / "loky")
        told = f"{RUNS} runs and the tables {', '.join(sorted(expected['tables']))}"
        for engine in options.engines:
            with {"ray": ray_cluster, "dask": dask_cluster}[engine]() as (environment, victim):
                begin = time.perf_counter()
                killed = compare(Path(name) / engine, engine, victim, **environment)
            found = outcome(Path(name) / engine)
            for part in ("runs", "tables"):
                keys = expected[part].keys() | found[part].keys()
                differ = [key for key in keys if found[part].get(key) != expected[part].get(key)]
                assert not differ, f"{engine}: {part} differ: {differ}."
            print(f"{engine}: {killed}; {told} are those of one machine ({time.perf_counter() - begin:.0f} s).")


if __name__ == "__main__":
    main()
