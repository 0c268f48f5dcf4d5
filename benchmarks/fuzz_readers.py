"""Feed damaged ARFF, XML, NPZ, MATLAB and R files to the readers and see how they take it.

Every input must be read, or refused by one ``DataError`` of one sentence that names the file, within seconds; and
nothing in it may be executed. Run ``python benchmarks/fuzz_readers.py``; the exit code is the verdict. Seven of nine
inputs are ARFF, XML or NPZ, so that the default of 13,000 holds 10,000 of these.
"""

from __future__ import annotations

import argparse
import gzip
import io
import lzma
import pickle
import random
import signal
import struct
import sys
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from lightning_ubs.data import DataError, read_dataset

HANG_SECONDS = 20.0
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


class Hang(BaseException):
    """A reader took too long; not an ``Exception``, so that no reader can swallow it."""


@dataclass
class Verdict:
    """What happened to the inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0


def npy(array: Any) -> bytes:
    """Return an array as the bytes of a ``.npy`` file; objects are pickled, as an attacker would."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=True)
    return stream.getvalue()


def archive(members: dict[str, bytes]) -> bytes:
    """Return the bytes of an ``.npz`` file with valid checksums, whatever its members hold."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
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


def write_input(folder: Path, rng: random.Random) -> Path:
    """Write one damaged input, with what belongs beside it, and return the file to read."""
    kind = rng.choice(["dense", "sparse", "meka", "xml", "zip", "members", "gz", "mat", "rda"])
    if kind in ("zip", "members"):
        members = rng.choice(npz_members())
        if kind == "members":
            chosen = rng.choice(sorted(members))
            members[chosen] = mutate(members[chosen], rng)
        content = archive(members)
        path = folder / "input.npz"
        path.write_bytes(content if kind == "members" else mutate(content, rng))
        return path
    if kind in ("mat", "rda"):
        path = folder / f"input.{kind}"
        content = mutate(mat_file() if kind == "mat" else rda_file(), rng)
        path.write_bytes(lzma.compress(content) if kind == "rda" and rng.random() < 0.5 else content)
        return path
    source = {"dense": DENSE, "sparse": SPARSE, "meka": MEKA, "xml": DENSE, "gz": SPARSE}[kind]
    path = folder / "input.arff"
    (folder / "input.xml").write_bytes(mutate(XML, rng) if kind == "xml" else XML)
    if kind == "gz":
        path = folder / "input.arff.gz"
        content = gzip.compress(mutate(source, rng)) if rng.random() < 0.5 else mutate(gzip.compress(source), rng)
        path.write_bytes(content)
    else:
        path.write_bytes(source if kind == "xml" else mutate(source, rng))
    return path


def fuzz(inputs: int, seed: int = 0) -> Verdict:
    """Read ``inputs`` damaged files and return what happened."""
    verdict, executed = Verdict(), list[str]()
    forbidden = {"pickle.find_class", "os.system", "os.exec", "subprocess.Popen", "socket.connect"}
    listening = True

    def watch(event: str, _: Any) -> None:
        if listening and event in forbidden:
            executed.append(event)

    def expire(*_: Any) -> None:
        raise Hang

    sys.addaudithook(watch)
    before = signal.signal(signal.SIGALRM, expire)
    with tempfile.TemporaryDirectory() as name:
        for number in range(inputs):
            path = write_input(Path(name), random.Random(f"{seed}-{number}"))
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
            try:
                outcome = _outcome(path)
            except Hang:
                outcome = "fault: hang"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            verdict.slowest = max(verdict.slowest, time.perf_counter() - start)
            outcome = f"fault: executed {executed.pop()}" if executed else outcome
            verdict.outcomes[outcome.split(":")[0]] += 1
            if outcome.startswith("fault"):
                verdict.faults.append(f"input {number} of seed {seed} ({path.name}): {outcome}")
    listening = False
    signal.signal(signal.SIGALRM, before)
    return verdict


def _outcome(path: Path) -> str:
    try:
        data = read_dataset(path, cache=False)
    except DataError as error:
        told = str(error)
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
    parser.add_argument("--inputs", type=int, default=13_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    assert b"exec" in pickle.dumps(Bomb())
    verdict = fuzz(arguments.inputs, arguments.seed)
    print(f"{dict(verdict.outcomes)}, slowest {verdict.slowest:.2f} s, faults {len(verdict.faults)}")
    for fault in verdict.faults[:20]:
        print(fault)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
