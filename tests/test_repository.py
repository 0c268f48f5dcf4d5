"""What a repository keeps beside its code agrees with it: changelog, citation, workflows, templates."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import lightning_ubs

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def test_the_version_is_written_in_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert Version(lightning_ubs.__version__)


def test_the_changelog_is_that_of_this_version() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\S+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert all(releases), "a release has a version in brackets and a date"
    versions = [Version(found[1]) for found in releases if found]
    assert versions[0] == Version(lightning_ubs.__version__)
    assert all(later > earlier for later, earlier in pairwise(versions))


def test_the_changelog_keeps_the_usual_headings() -> None:
    usual = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= usual


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == lightning_ubs.__version__
    assert citation["license"] == PROJECT["license"]


def test_ci_runs_on_every_python_that_is_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    promised = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert set(jobs["tests"]["strategy"]["matrix"]["python"]) == promised
    assert f">={min(promised, key=Version)}" == PROJECT["requires-python"]
    assert {"run": "bash .ci/run"} in jobs["tests"]["steps"]


def test_ci_runs_on_the_oldest_lightning_that_is_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    command = jobs["oldest-lightning"]["steps"][-1]["run"]
    needed = next(Requirement(text) for text in PROJECT["dependencies"] if text.startswith("lightning>"))
    oldest = Version(command.rpartition(" ")[2])
    assert needed.specifier.contains(str(oldest))
    assert oldest == Version(str(needed.specifier).removeprefix(">="))


def test_pre_commit_lints_with_the_version_that_ci_has() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    ruff = next(repo["rev"] for repo in hooks if "ruff" in repo["repo"])
    assert f"ruff=={ruff.removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_an_issue_form_has_what_forms_need(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] for field in form["body"])


def test_the_top_level_holds_nothing_unexpected() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a clone is held to this")
    hidden = {".ci", ".git", ".github", ".gitignore", ".pre-commit-config.yaml"}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"}
    build = {"MANIFEST.in", "constraints.txt", "pyproject.toml"}
    folders = {"benchmarks", "configs", "docs", "examples", "lightning_ubs", "tests"}
    import subprocess

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split("/")[0] for line in listed.splitlines()} <= hidden | texts | build | folders
