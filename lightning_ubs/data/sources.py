"""The published files: where they are, how large, and their checksums."""

from __future__ import annotations

from dataclasses import dataclass

_MULAN = ("tsoumakas/mulan", "43f6389095ad71984264db4387a8074b22bc7d4a", "data/multi-label/")
_MLDR = "fcharte/mldr.datasets"


@dataclass(frozen=True)
class SourceFile:
    """One file of a public repository, pinned by commit, size and SHA-256."""

    repository: str
    commit: str
    path: str
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's published name, without folders."""
        return self.path.rsplit("/", 1)[-1]


def _mulan(folder: str, *files: tuple[str, int, str]) -> tuple[SourceFile, ...]:
    repository, commit, root = _MULAN
    return tuple(SourceFile(repository, commit, f"{root}{folder}/{name}", size, sha) for name, size, sha in files)


def _mldr(commit: str, path: str, size: int, sha: str) -> tuple[SourceFile, ...]:
    return (SourceFile(_MLDR, commit, path, size, sha),)


FILES: dict[str, tuple[SourceFile, ...]] = {
    "yeast": _mulan(
        "yeast",
        ("yeast.arff", 2_416_688, "55c07a3b6ff885ae338fb6987a1d57f55572b29809922c2822c4885c61230dd7"),
        ("yeast.xml", 526, "c3056cc26444b5158b1588d1b73bec9c45429e10f0957ad085903423cb81f247"),
    ),
    "bibtex": _mulan(
        "bibtex",
        ("bibtex.arff", 3_457_832, "a282a6d1fb3cdaf39bde3f81cd4e6079850a7a538a6bc44f8b4ed95dfe1e5014"),
        ("bibtex.xml", 5_880, "08fe20013c1e75dcf1888c185f5187c95e76495b8518ce289b4d3afce38d1232"),
    ),
    "enron": _mulan(
        "enron",
        ("enron.arff", 906_705, "d0889ef0576d4e7b5ec0df3b3e4760e476ac11a6e7d7ddeee4c4a34470dedf97"),
        ("enron.xml", 1_604, "ed40c92d7f613eed51714912cab10dddc4ce456262137d8fef230d44c7f4457b"),
    ),
    "cal500": _mulan(
        "cal500",
        ("cal500.arff", 492_857, "cfe6097ba5fd6e8584e54911ab9783dcab34e898446b7c9370c71d477eae56d3"),
        ("cal500.xml", 7_901, "877e128531268d7661faa3e44f7bb43cbcda829c0895e49879168775b192728c"),
    ),
    "emotions": _mulan(
        "emotions",
        ("emotions.arff", 380_476, "6f2f790047073d1293ac0872c0d55f2dc98b6177802fc96c6b66b309dfee1e4b"),
        ("emotions.xml", 323, "dbce8e6ccbbb2fcbfd9e9edbb230d7ed12692c6e13f59fdbc0161fa9b6cf2dc0"),
    ),
    "scene": _mulan(
        "scene",
        ("scene-train.arff", 3_127_968, "b53ba93bdf412de922e3960389bcee24744fa3e872ce610511fc1d750888b64d"),
        ("scene-test.arff", 3_090_742, "ea38d20296b3ff7e220f477a3b802a9bcb2d768881fe6ee163efbc97ea527a42"),
        ("scene.xml", 285, "55d8b247b949ad5c52e5a73d8c6775ec6e5469ce9682465b45b333b68ee4bcc5"),
    ),
    "Corel5k": _mulan(
        "corel5k",
        ("Corel5k-sparse.arff", 377_579, "12c06161d2367f919f6da912089a6c9180c115cfcefa37afacfdeb903930eb7e"),
        ("Corel5k.xml", 11_222, "54ef6a6ccb7ca9b77524052b34b306d5d501661a5609b9d1cc7085b2b597679d"),
    ),
    "tmc2007-500": _mulan(
        "tmc2007",
        ("tmc2007-500.arff", 4_193_699, "3ea7e95dd80a78a3e7d521d77c3371bfef888da1d364b5a3bb71c7222ad7f013"),
        ("tmc2007-500.xml", 783, "cb6a67c8ae72fd9b47d89f77aa5b7f6cafb4ba9c20b1124c65a95a3f2caec38d"),
    ),
    "rcv1subset1": _mldr(
        "23d103ab63a2afbcc32a2a0b9924f4cce236f3f5",
        "additional-data/rcv1sub1.rda",
        3_901_552,
        "6a1d636e37f96d4c145237798ab8fad3e483dab30b80beb9bcf1d2a88c2e9419",
    ),
    "rcv1subset2": _mldr(
        "69df423b563597b8df9d41ecbfd234c8bed7875b",
        "additional-data/rcv1sub2.rda",
        3_887_436,
        "747c2c791de146f726085574ebfa546b8bfccea3765d7e6e85ed815667668c09",
    ),
    "rcv1subset3": _mldr(
        "010268ae3a4dfe3593ac3e867229c2e8bf239913",
        "additional-data/rcv1sub3.rda",
        3_920_352,
        "3676392175cf3c44749e23b07d50f538e26e540b2521ff91b42e415cf8eb0fcc",
    ),
    "yahoo-Arts1": _mldr(
        "3aa4a7c680dc4e64c25bf9403c94a71f35406ffb",
        "additional-data/yahoo_arts.rda",
        2_618_472,
        "d8f68d6c1f78bcc60dbdd5c954e39007afb7254bc20e5f9a1104db64e1298ed1",
    ),
    "yahoo-Business1": _mldr(
        "c340bed44cf627cfac47df13f944148a43859f52",
        "additional-data/yahoo_business.rda",
        3_500_420,
        "95e3758f514bff7e3661c87b017ff845fc4ade15511f472d580d5bcf9cd30f1b",
    ),
    "langlog": _mldr(
        "e65c9f8935ea8ad2683a678340000c8fb42e14c7",
        "data/langlog.rda",
        169_340,
        "5eda4f98a454749f15fa6a196a962a4850ef460b162f867d1f6c3908db3c9e62",
    ),
    "LLOG-F": (
        SourceFile(
            "KKimura360/MLC_toolbox",
            "e7987792cc26a81028395a0761b65b2bc89364bd",
            "dataset/matfile/languagelog.mat",
            158_611,
            "8e59d37c26017e0ac44f07928bbf03a228051e1c3e2e2d2652985269d376563f",
        ),
    ),
}
