"""Feed damaged and hostile files of every format to the readers and see what they do.

Every input must be read, or refused by one ``DataError`` of one sentence that names the file, within 10 seconds of
processor time (other programs on the machine do not count) and 2 GB; and nothing in it may be executed. They are read
in processes with limits, so that a crash, a limit that is hit or a wait for nothing is seen and counted. Run
``python benchmarks/fuzz_readers.py``; the exit code is the verdict.
"""

from __future__ import annotations

import argparse
import bz2
import functools
import gzip
import io
import json
import lzma
import os
import pickle
import random
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse

from lightning_ubs.data import DataError, read_dataset

SECONDS = 10
MEMORY = 2 * 2**30
BATCH = 50
IDLE = 60
FORBIDDEN = {"pickle.find_class", "os.system", "os.exec", "subprocess.Popen", "socket.connect"}
XML = b"""<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="a"></label><label name="b"><label name="c d"/></label>
</labels>
"""
DENSE = b"""% a comment
@relation 'small: set'
@attribute x numeric
@attribute "y \\" z" {red,'dark blue',green}
@attribute a {0,1}
@attribute b {1,0}
@attribute 'c d' numeric
@data
0.5,red,0,1,0
-1e-3,'dark blue',1,0,1
7,"green",1,1,0
"""
SPARSE = b"""@relation sparse
@attribute x real
@attribute y {n,y}
@attribute z integer
@attribute a {0,1}
@attribute b {0,1}
@attribute 'c d' {0,1}
@data
{0 1.5,3 1}
{}
{1 y, 2 -4,5 1}
"""
CSV = b"""x,"a, b",label_a,label_b
0.5,1e3,0,1
-2,"7",true,no
1,3,1,1
"""
SVMLIGHT = b"""1,3 1:0.5 4:-2e3 # comment
 2:1
3 1:7 2:0.25 3:1
"""
MEKA = DENSE.replace(b"'small: set'", b"'small: -C -3 -split-number 2'")
TOKENS = [
    b"{", b"}", b"'", b'"', b"\\", b",", b",,,,,,,,", b"%", b"?", b"\n", b"\r", b"\t", b"\x00", b"\xff\xfe", b" ",
    b"@attribute", b"@data\n", b"@relation ", b"@attribute q {" + b"a," * 40 + b" ;", b"@attribute s string\n",
    b"-C 999999999999", b"-C 0", b"-C -2", b"nan", b"inf", b"1e999", b"-0", b"9" * 5000, b"{0 1,0 1}", b"{99999999 1}",
    b"<!DOCTYPE x [<!ENTITY a 'aaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]>", b"&b;", b"<label>", b"]]>",
    b"<label name='a'/>",
    b" " * 20000, b"'" * 999, b"\\'" * 999, b"{" * 999, b"<label>" * 999, b"\x93NUMPY", b"|O", b"(999999999, 9)",
    b"\x80\x04",
]  # fmt: skip


class Bomb:
    """Unpickling this would run code; no reader may."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a pickle would execute."""
        return exec, ("raise SystemExit('a reader executed a pickle')",)


class Result(NamedTuple):
    """What became of one input."""

    outcome: str
    seconds: float
    memory: int


@dataclass
class Verdict:
    """What happened to the inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0


def npy(array: Any) -> bytes:
    """Return an array as the bytes of a ``.npy`` file; objects are pickled, as an attacker would."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
    return stream.getvalue()


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the bytes of an ``.npz`` file with valid checksums, whatever its members hold."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name + ".npy", content)
    return stream.getvalue()


def npz_members() -> list[dict[str, bytes]]:
    """Return the members of a dense, a sparse and a hostile archive."""
    common = {"Y": np.eye(3, 2, dtype=np.uint8), "label_names": ["a", "b"], "feature_names": ["u", "v", "w"]}
    matrix = scipy.sparse.random(3, 3, 0.5, format="csr", dtype=np.float32, random_state=0)
    parts = {"X_data": matrix.data, "X_indices": matrix.indices, "X_indptr": matrix.indptr, "X_shape": matrix.shape}
    dense = common | {"X": np.arange(9, dtype=np.float32).reshape(3, 3)}
    sets: list[dict[str, Any]] = [dense, common | parts, dense | {"label_names": np.array([Bomb(), Bomb()])}]
    return [{name: npy(value) for name, value in members.items()} for members in sets]


def mat_file() -> bytes:
    """Return a small MATLAB file."""
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"data": np.arange(12.0).reshape(4, 3), "target": np.eye(2, 4)})
    return stream.getvalue()


def rda_file() -> bytes:
    """Return a small mldr object as R's ``save()`` writes it."""

    def integers(*values: int) -> bytes:
        return struct.pack(f">{len(values)}i", *values)

    def chars(text: str) -> bytes:
        return integers(0x40009, len(text)) + text.encode()

    def named(*members: tuple[str, bytes]) -> bytes:
        names = integers(0x10, len(members)) + b"".join(chars(name) for name, _ in members)
        values = b"".join(value for _, value in members)
        attributes = integers(0x402, 1) + chars("names") + names + integers(254)
        return integers(0x213, len(members)) + values + attributes

    def reals(*values: float) -> bytes:
        return integers(14, len(values)) + struct.pack(f">{len(values)}d", *values)

    frame = named(("x", reals(0, 1.5, 2)), ("y", reals(3, 0, 0)), ("a", reals(1, 0, 1)), ("b", reals(0, 0, 1)))
    mldr = named(("dataset", frame), ("labels", named(("index", integers(13, 2, 3, 4)))))
    return b"RDX2\nX\n" + integers(2, 196610, 131840, 0x402, 1) + chars("set") + mldr + integers(254)


@functools.cache
def parquet_file() -> bytes:
    """Return a small Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(pa.table({"x": [0.5, 1.5, 2.5], "label_a": [0, 1, 0], "label_b": [True, False, True]}), stream)
    return stream.getvalue()


@functools.cache
def bombs() -> list[tuple[str, bytes]]:
    """Return files that unpack to a hundred megabytes or more, or claim to, with their names."""
    zeros = bytes(120_000_000)
    rows = DENSE + b"7,green,1,1,0\n" * 6_000_000
    vector = (
        rda_file()[:-4] + struct.pack(">3i", 0x402, 1, 0x40009) + struct.pack(">i1s2i", 1, b"z", 14, 15_000_000) + zeros
    )
    wide = {"X": npy(np.zeros((30_000_000, 1), np.float32)), "Y": npy(np.ones((1, 1)))}
    stream = io.BytesIO()
    scipy.io.savemat(stream, {"data": np.zeros((15_000_000, 1)), "target": np.eye(2, 4)}, do_compression=True)
    sides = struct.pack("<2i", 4, 3)
    sparse = io.BytesIO()
    scipy.io.savemat(sparse, {"data": scipy.sparse.csc_matrix(np.eye(4, 3)), "target": np.eye(2, 4)})
    return [
        ("input.arff.gz", gzip.compress(rows, 6)),
        ("input.arff.bz2", bz2.compress(b"%\n" * 2_000_000) * 30),
        ("input.arff.xz", lzma.compress(rows, preset=0)),
        ("input.arff.gz", gzip.compress(zeros, 6)),
        ("input.csv.gz", gzip.compress(CSV + b"1,1,1,1\n" * 10_000_000, 6)),
        ("input.svm.gz", gzip.compress(SVMLIGHT + b"1,3 1:1\n" * 10_000_000, 6)),
        ("input.svm", b"1 2147483646:1\n2 1:1\n"),
        ("input.npz", archive(wide, zipfile.ZIP_DEFLATED)),
        ("input.mat", stream.getvalue()),
        ("input.mat", sparse.getvalue().replace(sides, struct.pack("<2i", 2**31 - 1, 3))),
        ("input.rda", gzip.compress(vector, 6)),
        ("input.rda", bz2.compress(vector)),
    ]


def mutate(data: bytes, rng: random.Random, rounds: int = 6) -> bytes:
    """Return a damaged copy: bytes flipped, cut, doubled, or hostile tokens put in."""
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, rounds])):
        size = len(damaged)
        start = rng.randrange(size + 1)
        stop = min(size, start + rng.choice([1, 2, 9, 1 + size // 4]))
        match rng.randrange(7):
            case 0 if size:
                damaged[start % size] ^= 1 << rng.randrange(8)
            case 1 if size:
                damaged[start % size] = rng.randrange(256)
            case 2:
                del damaged[start:stop]
            case 3:
                damaged[start:start] = damaged[start:stop]
            case 4:
                del damaged[start:]
            case _:
                damaged[start:start] = rng.choice(TOKENS)
    return bytes(damaged)


def write_input(folder: Path, rng: random.Random, with_bombs: bool) -> Path:
    """Write one hostile input, with what belongs beside it, and return the file to read."""
    if with_bombs and rng.random() < 0.01:
        name, content = rng.choice(bombs())
        (folder / "input.xml").write_bytes(XML)
        (folder / name).write_bytes(content if rng.random() < 0.5 else mutate(content, rng))
        return folder / name
    kind = rng.choice(["dense", "sparse", "meka", "xml", "zip", "members", "packed", *PLAIN])
    if kind in ("zip", "members"):
        members = rng.choice(npz_members())
        if kind == "members":
            chosen = rng.choice(sorted(members))
            members[chosen] = mutate(members[chosen], rng)
        content = archive(members)
        path = folder / "input.npz"
        path.write_bytes(content if kind == "members" else mutate(content, rng))
        return path
    if kind in PLAIN:
        path = folder / f"input.{kind}"
        content = mutate(PLAIN[kind](), rng)
        path.write_bytes(lzma.compress(content) if kind == "rda" and rng.random() < 0.5 else content)
        return path
    source = {"dense": DENSE, "sparse": SPARSE, "meka": MEKA, "xml": DENSE, "packed": SPARSE}[kind]
    path = folder / "input.arff"
    (folder / "input.xml").write_bytes(mutate(XML, rng) if kind == "xml" else XML)
    if kind == "packed":
        compress = rng.choice([gzip.compress, bz2.compress, lzma.compress])
        path = folder / "input.arff.gz"
        path.write_bytes(compress(mutate(source, rng)) if rng.random() < 0.5 else mutate(compress(source), rng))
    else:
        path.write_bytes(source if kind == "xml" else mutate(source, rng))
    return path


PLAIN: dict[str, Callable[[], bytes]] = {
    "mat": mat_file, "rda": rda_file, "csv": lambda: CSV, "svm": lambda: SVMLIGHT, "parquet": parquet_file,
}  # fmt: skip


def fuzz(inputs: int, seed: int = 0, with_bombs: bool = False, first: int = 0) -> Verdict:
    """Read ``inputs`` hostile files and return what happened."""
    verdict, number, end = Verdict(), first, first + inputs
    if with_bombs:
        bombs()  # once, before the processes that use them
    with tempfile.TemporaryDirectory() as name:
        while number < end:
            wanted = range(number, min(number + BATCH, end))
            for result in _in_a_process(Path(name), wanted, seed, with_bombs):
                verdict.slowest = max(verdict.slowest, result.seconds)
                verdict.largest = max(verdict.largest, result.memory)
                verdict.outcomes[result.outcome.split(":")[0]] += 1
                if result.outcome.startswith("fault"):
                    verdict.faults.append(f"input {number} of seed {seed}: {result.outcome}")
                number += 1
            if with_bombs:
                print(f"\r{number - first} of {inputs}: {dict(verdict.outcomes)}", end="", file=sys.stderr, flush=True)
    return verdict


def _in_a_process(folder: Path, numbers: range, seed: int, with_bombs: bool) -> list[Result]:
    """Return what became of inputs that a child with limits read, up to the first that ended the child."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            with os.fdopen(theirs, "w") as stream:
                for result in _watched(folder, numbers, seed, with_bombs):
                    stream.write(json.dumps(result) + "\n")
                    stream.flush()
        finally:
            os._exit(0)
    os.close(theirs)
    text, idle = _told(ours, child)
    results = [Result(*json.loads(line)) for line in text.splitlines()]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        late = name == "SIGPROF"
        told = f"longer than {SECONDS} s" if late else f"the process crashed by {name}"
        results.append(Result(f"fault: {IDLE} s of waiting" if idle else f"fault: {told}", SECONDS if late else 0.0, 0))
    elif len(results) < len(numbers):
        results.append(Result("fault: no outcome", 0.0, 0))
    return results


def _told(stream: int, child: int) -> tuple[bytes, bool]:
    """What a child wrote; and whether it was killed because it waited for something instead of working."""
    text, before = b"", [""]
    with os.fdopen(stream, "rb", buffering=0):
        while True:
            if select.select([stream], [], [], IDLE)[0]:
                part = os.read(stream, 1 << 16)
                text, before = text + part, [""]
                if not part:
                    return text, False
                continue
            used = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]  # processor time
            if used == before:
                os.kill(child, signal.SIGKILL)
                return text, True
            before = used


def _watched(folder: Path, numbers: range, seed: int, with_bombs: bool) -> Iterator[Result]:
    """Read inputs in this process, which may not execute anything nor pass its limits."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    executed = list[str]()
    sys.addaudithook(lambda event, _: executed.append(event) if event in FORBIDDEN else None)
    before = _memory("VmRSS")
    for number in numbers:
        path = write_input(folder, random.Random(f"{seed}-{number}"), with_bombs)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # processor time: other programs do not count
        outcome = _outcome(path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome = f"fault: executed {executed.pop()}" if executed else outcome
        path.unlink()
        (folder / "input.xml").unlink(missing_ok=True)
        yield Result(outcome, time.process_time() - start, _memory("VmHWM") - before)


def _memory(what: str) -> int:
    """Return a count of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


def _outcome(path: Path) -> str:
    try:
        labels = "label" if ".csv" in path.name or ".parquet" in path.name else None
        data = read_dataset(path, labels, cache=False)
    except DataError as error:
        told = str(error)
        if "too little memory" in told or "MemoryError" in told:
            return f"fault: more than {MEMORY:,} bytes: {told!r}"
        single = "\n" not in told and told.endswith(".") and len(told) < 600
        return "refused" if single and "input." in told else f"fault: an unclear message: {told!r}"
    except (Exception, SystemExit) as error:
        return f"fault: {type(error).__name__} {error}"
    values = data.X.data if scipy.sparse.issparse(data.X) else data.X
    sound = data.Y.dtype == np.uint8 and (data.Y <= 1).all() and np.isfinite(values).all()
    return "read" if sound and len(data.X.shape) == 2 else "fault: unsound data"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input, to repeat one")
    arguments = parser.parse_args()
    assert b"exec" in pickle.dumps(Bomb())
    verdict = fuzz(arguments.inputs, arguments.seed, with_bombs=True, first=arguments.first)
    print(
        f"{dict(verdict.outcomes)}, slowest {verdict.slowest:.2f} s, largest {verdict.largest / 2**20:.0f} MiB, "
        f"faults {len(verdict.faults)}"
    )
    for fault in verdict.faults[:20]:
        print(fault)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
