"""Grids on real clusters on this machine: Ray with two nodes, Dask with two workers, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from light_run import begun, light_runs

from lightning_ubs.experiment.grid import run_grid
from lightning_ubs.experiment.store import ResultsStore

pytestmark = pytest.mark.cluster

RUNS = 8


def kill_when_begun(folder: Path, kill: Any, count: int = 3) -> threading.Thread:
    """Call ``kill`` in the middle of a grid: when ``count`` runs have begun."""

    def watch() -> None:
        while len(begun(folder)) < count:
            time.sleep(0.05)
        kill()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def check(folder: Path) -> None:
    """All runs are in the store, once; at most those that died were begun again."""
    store = ResultsStore(folder)
    keys = [run.key for run in light_runs(folder, RUNS)]
    assert Counter(record.key for record in store.records()) == Counter(keys)
    assert store.keys() == set(keys)
    # How many died with their node depends on the moment; it may have had none just then.
    assert RUNS <= len(begun(folder)) <= RUNS + 4
    assert {path.name for path in folder.iterdir()} == {"runs.jsonl"}


def test_a_dask_worker_that_is_killed_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results"
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path / "scratch")]
        workers = [
            subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        try:
            with distributed.Client(cluster) as client:
                client.wait_for_workers(2, timeout=60)
                killer = kill_when_begun(folder, lambda: os.kill(workers[0].pid, signal.SIGKILL))
                outcome = run_grid(light_runs(folder, RUNS, 0.4), ResultsStore(folder), None, "dask")
                killer.join()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert not outcome.failed
    check(folder)


def test_a_ray_node_that_is_killed_costs_no_run(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    folder = tmp_path / "results"
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        runs = light_runs(folder, RUNS, 0.4)
        killer = kill_when_begun(folder, lambda: kill_node(second))
        outcome = run_grid(runs, ResultsStore(folder), None, "ray")
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert not outcome.failed
    check(folder)


def kill_node(node: Any) -> None:
    """Kill a Ray node as if its machine had lost its power: all its processes at once, with -9."""
    import psutil

    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [*raylet.children(recursive=True), raylet]:
        process.kill()
