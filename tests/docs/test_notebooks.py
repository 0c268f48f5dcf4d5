"""The notebooks run from a fresh kernel, and the outputs that they keep are small."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from notebooks import NOTEBOOKS, executed  # noqa: E402

pytestmark = pytest.mark.docs


def texts(notebook: object) -> str:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]  # type: ignore[attr-defined]
    return "".join(output.get("text", "") for cell in cells for output in cell.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_what_it_said_before(path: Path, tmp_path: Path) -> None:
    kept, fresh = texts(nbformat.read(path, as_version=4)), texts(executed(path, tmp_path))
    telling = "Validation Macro-AUC" if path.stem == "get_started" else "UBS against Random"
    assert telling in kept
    assert telling in fresh


def test_both_notebooks_keep_modest_outputs_and_name_no_machine() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["does_it_pay", "get_started"]
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        pictures = [
            len(output["data"]["image/png"])
            for cell in notebook.cells
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        assert pictures
        assert max(pictures) < 200_000
        assert not [word for word in ("/home/", "/root/", "site-packages", "/tmp/") if word in path.read_text()]
