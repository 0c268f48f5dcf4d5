"""What a repository keeps beside its code agrees with it: changelog, citation, workflows, templates."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
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
    assert "version" in PROJECT["dynamic"]
    assert Version(lightning_ubs.__version__)


def test_the_changelog_is_that_of_this_version() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    releases = [re.fullmatch(r"\[(\S+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert all(releases), "a release has a version in brackets and a date"
    versions = [Version(found[1]) for found in releases if found]
    own = Version(lightning_ubs.__version__)
    assert versions[0] < own if own.is_devrelease else versions[0] == own
    assert all(later > earlier for later, earlier in pairwise(versions))


def test_the_changelog_keeps_the_usual_headings() -> None:
    usual = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= usual


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == lightning_ubs.__version__
    assert citation["license"] == PROJECT["license"]


def test_a_release_is_refused_until_everything_in_it_is_settled(tmp_path: Path) -> None:
    named = (
        "setup.py",
        "README.md",
        "docs/get_started.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "lightning_ubs/__init__.py",
    )
    for name in (*named, ".ci/release"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text()
        (tmp_path / name).write_text(text.replace(lightning_ubs.__version__, "0.2.0"))

    def check(*arguments: str) -> str:
        command = [sys.executable, ".ci/release", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr

    told = check("v0.3.0")
    assert "setup.py, README.md, docs/get_started.md: OWNER is no account" in told
    assert "the tag v0.3.0 is not v0.2.0" in told
    assert "CHANGELOG.md has no section [0.2.0] with a date" in told
    way_out = re.search(r"run: (sed .+)", told)
    assert way_out is not None
    subprocess.run(way_out[1].replace("ACCOUNT", "someone"), shell=True, cwd=tmp_path, check=True)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n")
    )
    assert check("v0.2.0") == ""
    assert not [name for name in named if "OWNER/" in (tmp_path / name).read_text()]
    assert (
        "is not one to release"
        in subprocess.run([sys.executable, ROOT / ".ci/release"], capture_output=True, text=True).stderr
        or not Version(lightning_ubs.__version__).is_devrelease
    )


def test_every_address_of_the_repository_is_that_of_the_one_constant() -> None:
    owner = re.search(r'^OWNER = "(.+?)"', (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert owner is not None
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*"), ROOT / "pyproject.toml"]
    named = {found for page in pages for found in re.findall(r"github\.com/([\w.-]+)/lightning-ubs", page.read_text())}
    assert named == {owner[1]}


def test_nothing_says_that_the_package_is_on_an_index_before_it_is() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/methods/*.md"), *ROOT.glob("examples/*")]
    wrong = [
        (page.name, line.strip())
        for page in pages
        for line in page.read_text().splitlines()
        if re.search(r"pip install [^`]*(?<!/)\blightning-ubs(?!(\[\w+\])? @)", line)
    ]
    assert Version(lightning_ubs.__version__).is_devrelease, "published: say how it is installed from the index"
    assert not wrong


def test_links_to_files_of_the_repository_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob(".github/*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            target = next(filter(None, link)).partition("#")[0]
            assert target.startswith("http") or not target or (page.parent / target).exists(), (page.name, target)


def test_publishing_takes_no_token_and_only_what_is_ready() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]
    steps = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert steps.index('python .ci/release "$GITHUB_REF_NAME"') < steps.index("python -m build")
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in (ROOT / ".github/workflows/publish.yml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job.get("timeout-minutes") or "environment" in job
        commands = " ".join(step.get("run", "") for step in job["steps"])
        for named in re.findall(r"(?:\.ci|tests)/\w+", commands):
            assert (ROOT / named).exists(), named
        for extra in re.findall(r'-e "\.\[(\w+)\]"', commands):
            assert extra in PROJECT["optional-dependencies"]


def test_systems_that_are_promised_are_those_that_ran() -> None:
    systems = {c for c in PROJECT["classifiers"] if c.startswith("Operating System")}
    assert systems == {"Operating System :: POSIX :: Linux"}, "workflows for others are there; name one when it passed"


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
    hidden = {".ci", ".git", ".github", ".gitignore", ".pre-commit-config.yaml", ".readthedocs.yaml"}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"}
    build = {"MANIFEST.in", "constraints.txt", "pyproject.toml", "setup.py"}
    folders = {"benchmarks", "configs", "docs", "examples", "lightning_ubs", "tests"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split("/")[0] for line in listed.splitlines()} <= hidden | texts | build | folders


# Beginnings and parts of words that US English writes otherwise, in pieces so that this file passes its own test.
BRITISH = [
    *(f"{stem}our" for stem in ("col", "behavi", "fav", "flav", "neighb", "hon")),
    *(
        f"{stem}is(e|ed|es|er|ing|ation)\\b"
        for stem in (
            "optim", "normal", "maxim", "minim", "initial", "recogn", "quant", "serial", "factor", "binar", "summar",
            "organ", "general", "special", "regular", "random", "standard", "penal", "visual", "synchron", "emphas",
        )
    ),
    *(f"{stem}led\\b" for stem in ("label", "cancel", "model", "signal")),
    "toward" + "s\\b",
    "catalog" + "ue", "learn" + "t\\b", "cent" + "res?\\b", "arte" + "fact", "judge" + "ment", "whil" + "st\\b",
]  # fmt: skip
# A public argument of HardImbalance since 0.1.0, which stands in stored runs.
KEPT = r"\bneighb" + r"ours\b(?! [a-z])"


def test_words_are_those_of_us_english() -> None:
    """Code, messages, configurations, documentation; quoted titles stand in catalog.toml and CITATION.cff."""
    folders = ("lightning_ubs", "configs", "tests", "docs", "examples", "benchmarks", ".ci", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()] + list(
        ROOT.glob("*.md")
    )
    told = {".py", ".md", ".yaml", ".yml", ".html", ".css", ".js", ".sh", ""}
    british = re.compile(rf"(?i)(?<![a-z])(un|mis)?({'|'.join(BRITISH)})")
    found = []
    for path in files:
        if path.suffix not in told or (ROOT / "docs" / "results") in path.parents or "_build" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            words = british.finditer(re.sub(KEPT, "", line))
            found += [f"{path.relative_to(ROOT)}:{number}: {match[0]}" for match in words]
    assert not found, "\n".join(found)


def entries(text: str) -> list[str]:
    """What a docstring says of its arguments, attributes, results and errors, each to its end."""
    found: list[str] = []
    section = ""
    for line in text.splitlines():
        heading = re.match(r"(Args|Attributes|Returns|Yields|Raises):$", line)
        if heading or not line.startswith(" "):
            section, begins = heading[1] if heading else "" if line else section, True
        elif section:
            entry = re.match(r" {4}\*{0,2}\w[\w.]*(?:, \w+)*: (.+)", line)
            if section in ("Returns", "Yields"):
                entry = re.match(r" {4}(.+)", line) if begins else None
            begins = False
            if entry:
                found.append(entry[1])
            elif found:
                found[-1] += " " + line.strip()
    return found


# Verbs in the third person: a summary that begins with one is neither imperative nor a noun phrase. Words that are
# nouns as well, such as Draws, Counts and Runs, are left out.
THIRD_PERSON = (
    *("Adds", "Carries", "Checks", "Chooses", "Compares", "Computes", "Connects", "Converts", "Creates", "Deals"),
    *("Decides", "Finds", "Gets", "Gives", "Hands", "Holds", "Keeps", "Knows", "Learns", "Makes", "Mixes", "Notices"),
    *("Partitions", "Predicts", "Prefers", "Raises", "Reads", "Refuses", "Remembers", "Repeats", "Returns"),
    *("Says", "Sends", "Shows", "Shuffles", "Stands", "Starts", "Stops", "Stores", "Takes", "Tells", "Trains"),
    *("Turns", "Uses", "Waits", "Weighs", "Writes", "Yields"),
)


def test_docstrings_speak_one_dialect() -> None:
    """Google's, in every room: a summary and an entry begin with a capital; an entry ends with a period."""
    package, wrong, seen = ROOT / "lightning_ubs", [], 0
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                told = entries(text)
                phrases = [*text.splitlines()[:1], *told]
                seen += len(phrases)
                wrong += [f"{path.name}: {text[:80]}"] if text.partition(" ")[0] in THIRD_PERSON else []
                wrong += [f"{path.name}: {phrase}" for phrase in phrases if phrase[:1].islower()]
                wrong += [f"{path.name}: no period: {entry}" for entry in told if not entry.endswith((".", "?"))]
    assert not wrong, "\n".join(wrong)
    assert seen > 2900
