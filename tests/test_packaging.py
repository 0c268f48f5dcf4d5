"""What is built is complete: the sdist passes its own tests, the wheel runs in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from once import once

import lightning_ubs
from lightning_ubs._utils.extras import installable

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
pytest.importorskip("build")

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", "_build", "notebooks", "outputs"
)  # fmt: skip
RUNS_OF_USERS = {"results", "outputs", "multirun", "lightning_logs", "checkpoints"}


def left_out(folder: str, names: list[str]) -> set[str]:
    """What a clone does not hold; results in the top folder are the user's, those in docs/ are ours."""
    return LEFT_OUT(folder, names) | (RUNS_OF_USERS & set(names) if Path(folder) == ROOT else set())


def command(*words: str | Path, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is built, and what is made of it."""
    return once(tmp_path_factory, "packages", build)


@pytest.fixture(scope="module")
def unpacked(built: Path) -> Path:
    return next((built / "unpacked").iterdir())


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    return built / "environment" / "bin" / "python"


def build(folder: Path) -> None:
    """The sdist and the wheel that is built from it, what the build said, the sdist unpacked, the wheel installed."""
    shutil.copytree(ROOT, folder / "source", ignore=left_out)
    packing = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist")
    done = command(*packing, cwd=folder / "source")
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    with tarfile.open(next(folder.glob("dist/*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    install(next(folder.glob("dist/*.whl")), folder / "environment")


def install(wheel: Path, folder: Path) -> None:
    """Install the wheel in a new environment, which borrows what it depends on from that of the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    )
    command(*pip, wheel, cwd=folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    borrowed = [*site.getsitepackages(), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "borrowed.pth").write_text("\n".join(dict.fromkeys(borrowed)))


def test_the_build_says_no_warning(built: Path) -> None:
    said = (built / "said.txt").read_text()
    assert "Successfully built" in said
    # The tests' own setting: they write no bytecode.
    lines = [line.lower() for line in said.splitlines() if "byte-compiling is disabled" not in line]
    assert [line for line in lines if re.search(r"\bwarning\b|deprecat", line)] == []


def test_the_sdist_holds_every_file_of_the_repository(unpacked: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone knows which files there should be")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*")}
    assert set(listed.splitlines()) - there == set()


def test_the_sdist_passes_its_own_tests(unpacked: Path) -> None:
    parts = (
        "tests/functional/test_selection.py",
        "tests/selection/test_sampling.py",
        "tests/test_architecture.py::test_types_are_shipped",
    )
    done = command(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *parts, cwd=unpacked, path=str(unpacked)
    )
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_the_wheel_says_what_it_is(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("dist/*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(wheel.read(name).decode())
        folders = {name.split("/")[0] for name in wheel.namelist()}
    assert told["Version"] == lightning_ubs.__version__
    assert told["Author"] == "lightning-ubs contributors"
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Description-Content-Type"] == "text/markdown"
    classifiers = told.get_all("Classifier") or []
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(classifiers)
    urls = dict(url.split(", ") for url in told.get_all("Project-URL") or [])
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    description = told.get_payload()
    assert isinstance(description, str)
    assert description.startswith("# lightning-ubs")
    links = [next(filter(None, one)) for one in re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"', description)]
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    for link in links:  # what is in the repository is named by its path there
        path = re.sub(r"^https://(raw\.githubusercontent|github)\.com/[^/]+/lightning-ubs/(blob/)?main/", "", link)
        assert path == link or (ROOT / path.partition("#")[0]).exists(), link
    assert folders == {"lightning_ubs", f"lightning_ubs-{lightning_ubs.__version__}.dist-info"}


def test_the_installed_wheel_runs_as_a_command_and_as_a_module(installed: Path, tmp_path: Path) -> None:
    version = f"lightning-ubs {lightning_ubs.__version__}"
    assert command(installed, "-m", "lightning_ubs", "--version", cwd=tmp_path).stdout.strip() == version
    assert command(installed.parent / "lightning-ubs", "--version", cwd=tmp_path).stdout.strip() == version


MISSING_EXTRA = """
import sys
sys.modules["pandas"] = None
from lightning_ubs._utils.extras import optional_import
try:
    optional_import("pandas")
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_way_out_of_a_missing_extra_installs_it_from_where_the_package_came(
    built: Path, installed: Path, tmp_path: Path
) -> None:
    told = command(installed, "-c", MISSING_EXTRA, cwd=tmp_path).stdout.strip()
    assert told.startswith(
        "'pandas' is needed here and not installed; run: pip install 'lightning-ubs[experiments] @ file"
    )
    words = shlex.split(told.partition("run: pip ")[2].removesuffix("."))
    done = command(sys.executable, "-m", "pip", "--python", installed, *words, "--dry-run", "--no-index", cwd=tmp_path)
    assert "dist/lightning_ubs" in done.stdout, "it is found where it came from, and its extra is there"


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, "'lightning-ubs[ray]'"),
        ({"url": "file:///a%20clone", "dir_info": {"editable": True}}, "-e '/a clone[ray]'"),
        (
            {"url": "https://example.org/it.git", "vcs_info": {"vcs": "git", "commit_id": "0af1"}},
            "'lightning-ubs[ray] @ git+https://example.org/it.git@0af1'",
        ),
    ],
    ids=["index", "clone", "repository"],
)
def test_a_missing_extra_is_installed_from_an_index_a_clone_or_a_repository(
    origin: dict[str, object] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "lightning_ubs-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning-ubs\nVersion: 9.9\n")
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert installable("ray") == words


NEW_USER = """
import sys
import lightning.pytorch, torchmetrics
before = set(sys.modules)  # torchmetrics imports matplotlib where it is installed
import lightning_ubs
assert "environment" in lightning_ubs.__file__, lightning_ubs.__file__
from lightning_ubs import BatchSelection, UBS, compare
print([name for name in ("hydra", "matplotlib", "pandas", "sklearn", "joblib") if name in set(sys.modules) - before])
import lightning as L, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def training_step(self, batch, batch_idx):
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

x = torch.randn(40, 4)
selection = BatchSelection(UBS(), warmup_epochs=1)
trainer = L.Trainer(max_epochs=3, callbacks=[selection], accelerator="cpu", logger=False, enable_progress_bar=False)
loader = DataLoader(TensorDataset(x, (x[:, :3] > 0).float()), batch_size=8, shuffle=True)
trainer.fit(Net(), loader)
again = BatchSelection(UBS(), warmup_epochs=1)
more = L.Trainer(max_epochs=4, callbacks=[again], accelerator="cpu", logger=False, enable_progress_bar=False)
more.fit(Net(), loader, ckpt_path=trainer.checkpoint_callback.best_model_path)
print(tuple(selection.uncertainty.shape), more.current_epoch, len(again.plan))
"""


def test_a_new_user_trains_and_resumes_with_the_wheel_and_nothing_optional_is_imported(
    installed: Path, tmp_path: Path
) -> None:
    told = command(installed, "-c", NEW_USER, cwd=tmp_path).stdout.strip().splitlines()
    assert told[0] == "[]"
    assert told[-1] == "(40, 3) 4 5"
