"""Executes the notebooks of `examples/`; as a program, in place, so that they keep fresh outputs.

python tests/helpers/notebooks.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of a run in ``folder``."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def without_times(notebook: Any) -> Any:
    """The notebook without what differs from run to run and says nothing."""
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec",)}
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


if __name__ == "__main__":
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(without_times(executed(path, Path(folder))), path)
