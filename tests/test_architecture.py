"""Imports go one way, private parts of Lightning stay in one file, and the import stays light."""

from __future__ import annotations

import ast
import importlib
import importlib.resources
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

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
)

# What each part of the core may import, besides the standard library and itself.
ALLOWED = {
    "functional": {"torch", "numpy"},
    "state": {"torch", "lightning_ubs._utils.distributed", "lightning_ubs.errors", "lightning_ubs.functional"},
    "strategies": {
        "torch",
        "lightning_ubs._utils.arguments",
        "lightning_ubs._utils.checks",
        "lightning_ubs.errors",
        "lightning_ubs.functional",
        "lightning_ubs.state",
    },
    "selection/plan.py": {"torch", "lightning_ubs.functional"},
    "selection/loader.py": {"torch", "lightning_ubs._utils.distributed", "lightning_ubs.selection.plan"},
    "selection/planner.py": {
        "torch",
        "lightning_ubs._utils.arguments",
        "lightning_ubs.errors",
        "lightning_ubs.functional",
        "lightning_ubs.selection.buffer",
        "lightning_ubs.selection.plan",
        "lightning_ubs.state",
        "lightning_ubs.strategies",
    },
    "selection/buffer.py": {"torch"},
    "_utils/arguments.py": {"torch"},
    "_utils/checks.py": set(),
    "_utils/distributed.py": {"torch"},
    "errors.py": set(),
}

# Modules beside the callback that serve the experiments.
NOT_CORE = {"__main__", "cli", "comparison", "methods", "metrics"}


def sources(part: str = "") -> list[Path]:
    path = PACKAGE / part
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it."""
    return modules_in(ast.parse(path.read_text()))


def modules_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield node.module or ""


class WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imports_at_run_time(path: Path) -> Iterator[str]:
    """Every module that a file imports, but for those that only a type checker reads."""
    return modules_in(WithoutTypes().visit(ast.parse(path.read_text())))


def within(module: str, allowed: set[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in allowed)


@pytest.mark.parametrize("part", ALLOWED)
def test_the_core_imports_nothing_below_it(part: str) -> None:
    own = "lightning_ubs." + part.removesuffix(".py").replace("/", ".")
    allowed = ALLOWED[part] | {own} | set(sys.stdlib_module_names)
    wrong = {
        (name_of(path), module) for path in sources(part) for module in imports(path) if not within(module, allowed)
    }
    assert not wrong


def test_the_callback_and_what_it_uses_import_nothing_of_the_experiments() -> None:
    experiments = {f"lightning_ubs.{name}" for name in ("data", "models", "experiment", "report", "cli", "metrics")}
    core = (
        [path for path in PACKAGE.glob("*.py") if path.stem not in NOT_CORE]
        + sources("reading")
        + sources("selection")
        + sources("inspection")
    )
    assert {"callback", "planner", "reader", "_lightning"} <= {path.stem for path in core}
    banned = experiments | set(OPTIONAL)
    wrong = {(name_of(p), module) for p in core for module in imports_at_run_time(p) if within(module, banned)}
    assert not wrong


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
    parts = ("record", "store", "planned", "claims", "engine", "worker", "grid", "progress")
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
