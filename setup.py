"""What pyproject.toml cannot say: where the repository is, and the README with links that work away from it."""

import re
from pathlib import Path

from setuptools import setup

OWNER = "OWNER"  # the account that hosts the repository; `python .ci/release` refuses this placeholder
REPOSITORY = f"https://github.com/{OWNER}/lightning-ubs"
PICTURES = f"https://raw.githubusercontent.com/{OWNER}/lightning-ubs/main"


def with_absolute_links(text: str) -> str:
    """The README as a package index shows it, where nothing lies beside it."""
    text = re.sub(r'(<(?:img|source)[^>]*? (?:src|srcset)=")(?!https?:)', rf"\1{PICTURES}/", text)
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{PICTURES}/", text)
    text = re.sub(r"((?<!!)\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)
    return text.replace("github.com/OWNER/", f"github.com/{OWNER}/")


setup(
    long_description=with_absolute_links((Path(__file__).parent / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Homepage": REPOSITORY,
        "Documentation": "https://lightning-ubs.readthedocs.io",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
)
