"""Imports go one way, private parts of Lightning stay in one file, and the import stays light."""

from __future__ import annotations

import ast
import importlib
import importlib.resources
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import lightning.pytorch as pl
import pytest

import lightning_ubs

PACKAGE = Path(lightning_ubs.__file__).parent
OPTIONAL = (
    "hydra",
    "omegaconf",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
    "arff",
    "rdata",
    "requests",
    "jinja2",
    "rich",
    "litdata",
    "streaming",
)

# The direction of imports: what each room may import of the others. Every import counts, also one inside a function or
# for types alone. `selection.plan` lies below the rest of its room; `__init__` only names what is public.
BELOW = {"_utils", "errors"}
EQUATIONS = BELOW | {"functional", "state"}
STRATEGIES = EQUATIONS | {"strategies"}
PLUG_IN = STRATEGIES | {"selection.plan", "reading", "selection", "inspection", "callback"}
LABORATORY = PLUG_IN | {"data", "metrics", "models", "methods"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_utils": {"errors"},
    "functional": set(),
    "state": BELOW | {"functional"},
    "strategies": EQUATIONS,
    "selection.plan": STRATEGIES,
    "reading": STRATEGIES | {"selection.plan"},
    "selection": STRATEGIES | {"selection.plan", "reading"},
    "inspection": STRATEGIES | {"selection.plan", "reading", "selection"},
    "callback": PLUG_IN - {"callback"},
    "data": BELOW,
    "metrics": BELOW,
    "models": BELOW | {"data", "metrics"},
    "methods": BELOW | {"strategies"},
    "experiment": LABORATORY,
    "report": LABORATORY | {"experiment"},
    "comparison": LABORATORY | {"experiment", "report"},
    "cli": LABORATORY | {"experiment", "report", "__init__"},
    "streams": BELOW,
    "__init__": LABORATORY | {"experiment", "comparison"},
    "__main__": {"cli"},
}
LAB_ROOMS = ("data", "models", "experiment", "report", "comparison", "cli", "metrics", "methods")

# Besides the standard library, and without Lightning or Hydra.
LIBRARIES = {
    "functional": {"torch", "numpy"},
    "state": {"torch", "numpy"},
    "strategies": {"torch", "numpy"},
    "selection/plan.py": {"torch", "numpy"},
    "errors.py": set(),
}


def sources(part: str = "") -> list[Path]:
    path = PACKAGE / part
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("lightning_ubs", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_of(path): path for path in sources()}


def room_of(module: str) -> str:
    rest = module.partition(".")[2]
    known = [room for room in ROOMS if rest == room or rest.startswith(f"{room}.")]
    return max(known, key=len) if known else rest.partition(".")[0] or "__init__"


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    return modules_in(ast.parse(path.read_text()))


def modules_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {one if one in MODULES else node.module or "" for one in named}


def own_imports(path: Path) -> Iterator[str]:
    return (module for module in imports(path) if within(module, {"lightning_ubs"}))


class WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imports_at_run_time(path: Path) -> Iterator[str]:
    """Every module that a file imports, but for those that only a type checker reads."""
    return modules_in(WithoutTypes().visit(ast.parse(path.read_text())))


def within(module: str, allowed: set[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in allowed)


def test_imports_between_rooms_go_one_way() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for module, path in MODULES.items():
        room = room_of(module)
        for other in map(room_of, own_imports(path)):
            if other != room and other not in ROOMS.get(room, set()):
                found.setdefault((room, other), set()).add(name_of(path))
    assert found == {}


def test_no_file_is_imported_by_what_it_imports() -> None:
    left = {
        module: {one for one in own_imports(path) if one in MODULES and one != module}
        for module, path in MODULES.items()
    }
    while free := {module for module, needed in left.items() if not needed & set(left)}:
        left = {module: needed for module, needed in left.items() if module not in free}
    # What is left imports a circle or is one; only files that others of these import can be in it.
    while ends := {module for module in left if not any(module in needed for needed in left.values())}:
        left = {module: needed for module, needed in left.items() if module not in ends}
    assert sorted(left) == []


@pytest.mark.parametrize("part", LIBRARIES)
def test_the_equations_know_neither_lightning_nor_hydra(part: str) -> None:
    allowed = LIBRARIES[part] | {"lightning_ubs"} | set(sys.stdlib_module_names)
    wrong = {
        (name_of(path), module) for path in sources(part) for module in imports(path) if not within(module, allowed)
    }
    assert not wrong


def test_the_plug_in_imports_no_optional_package() -> None:
    plug_in = [path for module, path in MODULES.items() if room_of(module) in PLUG_IN]
    assert {"callback", "planner", "reader", "_lightning"} <= {path.stem for path in plug_in}
    wrong = {
        (name_of(p), module) for p in plug_in for module in imports_at_run_time(p) if within(module, set(OPTIONAL))
    }
    assert not wrong


def test_the_packages_top_holds_at_most_nine_files() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 9


def test_errors_that_users_meet_stand_in_one_file_and_share_a_base() -> None:
    from lightning_ubs import errors

    found = {one for _, one in inspect.getmembers(errors, inspect.isclass)}
    assert all(issubclass(one, errors.LightningUBSError) for one in found)
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.ClassDef) and not node.name.startswith("_") and path.name != "errors.py"
            if named and any(
                ast.unparse(base).endswith("Error") or ast.unparse(base) == "Exception" for base in node.bases
            ):
                pytest.fail(f"{name_of(path)} defines {node.name}; put it into errors.py.")


def test_the_plug_in_trains_resumes_and_shows_itself_without_the_laboratory(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "lightning_ubs", ignore=shutil.ignore_patterns("__pycache__"))
    for room in LAB_ROOMS:
        shutil.rmtree(copy / room, ignore_errors=True)
        (copy / f"{room}.py").unlink(missing_ok=True)
    (tmp_path / "alone.py").write_text(ALONE)
    result = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "trained, resumed, shown"


ALONE = """
import pathlib
import lightning as L
import matplotlib
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

matplotlib.use("agg")
import lightning_ubs
from lightning_ubs import UBS, BatchSelection

assert pathlib.Path(lightning_ubs.__file__).parent == pathlib.Path("lightning_ubs").resolve()
x = torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
data = DataLoader(TensorDataset(x, (x[:, :3] > 0.6).float()), batch_size=8)


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch, batch_idx):
        return binary_cross_entropy_with_logits(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(epochs, path=None):
    selection = BatchSelection(UBS(), warmup_epochs=1, seed=0)
    trainer = L.Trainer(
        max_epochs=epochs, callbacks=[selection], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    )
    L.seed_everything(0, verbose=False)
    trainer.fit(Net(), data, ckpt_path=path)
    return selection, trainer


_, trainer = fit(3)
trainer.save_checkpoint("half.ckpt")
whole, _ = fit(5)
again, _ = fit(5, "half.ckpt")
assert again.plan is not None and len(again.plan.ids) == 40
assert torch.equal(again.plan.ids, whole.plan.ids)
assert len(again.to_frame()) == 40
again.plot_data_map()
again.plot_correlation()
print("trained, resumed, shown")
"""


def test_importing_the_package_imports_no_optional_dependency() -> None:
    # Lightning and torchmetrics import some of them themselves where they are installed.
    code = f"""
import sys, lightning.pytorch
before = set(sys.modules)
import lightning_ubs
for name in lightning_ubs.__all__: getattr(lightning_ubs, name)  # each is imported when it is first asked for
lightning_ubs.Recorder(lightning_ubs.BatchSelection())
print([m for m in {OPTIONAL!r} if m in set(sys.modules) - before], "hydra" in sys.modules, "sklearn" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[] False False"


def test_the_grid_its_engine_and_its_store_know_no_lightning() -> None:
    parts = ("record", "store", "run", "claims", "engine", "worker", "grid")
    code = f"""
import sys, importlib
for part in {parts!r}: importlib.import_module("lightning_ubs.experiment." + part)
print([m for m in ("torch", "lightning", "hydra", "joblib", "ray", "distributed") if m in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_equations_imports_no_lightning() -> None:
    parts = ("functional", "state", "strategies", "selection.plan")
    code = f"""
import sys, types, importlib
package = types.ModuleType("lightning_ubs"); package.__path__ = [{str(PACKAGE)!r}]
sys.modules["lightning_ubs"] = package
for part in {parts!r}: importlib.import_module("lightning_ubs." + part)
print([m for m in ("lightning", "pytorch_lightning", "lightning_fabric", "hydra") if m in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


LIGHTNING_OBJECTS = ("trainer", "fit_loop", "pl_module", "dataloader", "connector", "strategy.", "loader", "logger")


def private_uses(path: Path) -> Iterator[str]:
    """Private names of Lightning that a file imports or reads."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("lightning", "pytorch_lightning"):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"import of {part}" for part in parts if private(part))
        if isinstance(node, ast.Attribute) and private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and any(word in f"{owner}." for word in LIGHTNING_OBJECTS):
                yield f"{owner}.{node.attr}"


def test_private_parts_of_lightning_are_used_in_one_file_only() -> None:
    wrong = {(name_of(p), use) for p in sources() if name_of(p) != "selection/_lightning.py" for use in private_uses(p)}
    assert not wrong
    assert list(private_uses(PACKAGE / "selection" / "_lightning.py")), "the check finds those that are there"


def own_classes() -> Iterator[type]:
    for path in sources():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if path.name in ("__init__.py", "__main__.py"):
            continue
        module = importlib.import_module(".".join(("lightning_ubs", *parts)))
        for _, kind in inspect.getmembers(module, inspect.isclass):
            bases = (pl.Callback, pl.LightningModule, pl.LightningDataModule)
            if kind.__module__ == module.__name__ and issubclass(kind, bases):
                yield kind


def test_no_subclass_uses_a_private_name_that_lightning_gave_it() -> None:
    wrong = set()
    kinds = list(own_classes())
    for kind in kinds:
        given = {
            name
            for base in kind.__mro__
            if base.__module__.startswith(("lightning.", "pytorch_lightning."))
            for name in vars(base)
            if private(name)
        }
        for node in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))):
            if isinstance(node, ast.Attribute) and node.attr in given:
                wrong.add((kind.__name__, node.attr))
    assert lightning_ubs.BatchSelection in kinds
    assert not wrong


def test_types_are_shipped() -> None:
    assert importlib.resources.files("lightning_ubs").joinpath("py.typed").is_file()


def test_everything_public_is_there_and_documented() -> None:
    for name in lightning_ubs.__all__:
        assert hasattr(lightning_ubs, name)
        assert name == "__version__" or inspect.getdoc(getattr(lightning_ubs, name))
    for name in lightning_ubs.functional.__all__:
        assert inspect.getdoc(getattr(lightning_ubs.functional, name))


def test_every_package_is_installed() -> None:
    root = PACKAGE.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(file.parent.relative_to(root).parts) for file in PACKAGE.rglob("__init__.py")}
    configs = [root / "configs", *(file.parent for file in root.glob("configs/*/*.yaml"))]
    folders = {".".join(("lightning_ubs", *folder.relative_to(root).parts)) for folder in configs}
    assert set(listed) == found | folders | {"lightning_ubs.report.templates"}


def test_the_readme_and_ci_run_the_same_test_command() -> None:
    root = PACKAGE.parent
    commands = [line for line in (root / ".ci" / "run").read_text().splitlines() if "pytest" in line]
    assert len(commands) == 1
    assert commands[0] in (root / "README.md").read_text().splitlines()
    assert commands[0].endswith('pytest -n 2 -m ""'), "all tests, also those that a plain `pytest` leaves out"


def test_the_picture_of_the_rooms_shows_each_one_above_those_that_it_imports() -> None:
    picture = ElementTree.parse(PACKAGE.parent / "docs" / "_static" / "how_it_works.svg")
    tops = {
        group.attrib["data-room"]: float(group[0].attrib["y"])
        for group in picture.iter("{http://www.w3.org/2000/svg}g")
        if "data-room" in group.attrib
    }
    assert set(tops) == {room for room in ROOMS if not room.startswith("__")}
    wrong = {(room, other) for room in tops for other in ROOMS[room] & set(tops) if tops[room] >= tops[other]}
    assert wrong <= {("_utils", "errors")}, "these two stand side by side at the bottom"


def test_the_nine_stops_of_a_prediction_are_where_the_page_says() -> None:
    page = (PACKAGE.parent / "docs" / "how_it_works.md").read_text()
    walk = page.partition("## The walk of a prediction")[2].partition("\n\nThe equations")[0]
    stops = re.findall(r"^\d\. \*\*[^*]+\*\*", walk, flags=re.MULTILINE)
    assert [stop[0] for stop in stops] == list("123456789")
    named = re.findall(r"`([a-z_]+(?:/|\.py|/[a-z_]+\.py))`", walk)
    assert len(named) == 9
    assert [one for one in named if not (PACKAGE / one).exists()] == []
