"""What is known of each dataset: counts, origin, the paper's selection, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_ubs.data.sources import FILES, SourceFile


@dataclass(frozen=True)
class View:
    """The paper's selection: the most frequent features, and the labels with enough positives.

    Attributes:
        d: Number of features that remain.
        q: Number of labels that remain.
        feature_fraction: Share of the features that is kept, by the number of samples in which they are not zero.
        label_positives: Positives that a label must have to be kept.
    """

    d: int
    q: int
    feature_fraction: float = 1.0
    label_positives: int = 0


@dataclass(frozen=True)
class Entry:
    """One dataset of the catalogue.

    Attributes:
        name: Its name; lower and upper case do not matter where it is looked up.
        n: Samples.
        d: Features as published.
        q: Labels as published.
        cardinality: Mean number of positive labels per sample, as published.
        domain: Where the data comes from.
        citation: Whom to cite.
        defects: What is wrong with the published data; empty if nothing is known.
        remark: In what it differs from the paper's description.
        files: The published files; empty where the data is made by this package.
        view: The paper's selection of features and labels; None where the paper takes all.
        family: The collection that it belongs to; empty where it stands alone.
        paper_name: What the paper calls it, in its tables; empty where the paper does not use it.
        aliases: Other names.
        repairs: The name of the defective dataset of which this is the repaired variant; empty where it is none.
        realigned: Columns by which the labels of the second half are moved back; 0 leaves them as published.
    """

    name: str
    n: int
    d: int
    q: int
    cardinality: float
    domain: str
    citation: str
    defects: str = ""
    remark: str = ""
    files: tuple[SourceFile, ...] = ()
    view: View | None = None
    family: str = ""
    paper_name: str = ""
    aliases: tuple[str, ...] = ()
    repairs: str = ""
    realigned: int = 0

    @property
    def embedded(self) -> bool:
        """Whether the package makes the data itself."""
        return not self.files

    @property
    def source(self) -> str:
        """The public repository of its files, or who makes it."""
        return self.files[0].repository if self.files else "made by this package"

    @property
    def folder(self) -> str:
        """The name of the folder of its files; a variant that is derived from the same files shares it."""
        return self.repairs if self.realigned else self.name


_RCV1 = "Lewis et al., RCV1: a new benchmark collection for text categorization research, JMLR 5, 2004"
_YAHOO = "Ueda and Saito, Parametric mixture models for multi-labeled text, NIPS 2002"
_LANGLOG = "Read, Scalable multi-label classification, PhD thesis, University of Waikato, 2010"
_RCV1_VIEW = View(d=944, q=101, feature_fraction=0.02)


def _published_rcv1(number: int, shift: int, cardinality: float) -> Entry:
    columns = "column" if shift == 1 else "columns"
    return Entry(
        f"rcv1subset{number}", 6000, 47236, 101, cardinality, "text", _RCV1,
        defects=f"In samples 3000 to 5999 the labels are shifted left by {shift} {columns}, so that they name "
        f"the wrong classes, and the displaced ones stand in the last {shift} feature {columns}. The paper's numbers "
        f"are those of this file; rcv1subset{number}_aligned is the repaired one.",
        files=FILES[f"rcv1subset{number}"], view=_RCV1_VIEW, family="rcv1", paper_name=f"rcv1subset{number}",
    )  # fmt: skip


def _aligned_rcv1(number: int, shift: int, cardinality: float) -> Entry:
    return Entry(
        f"rcv1subset{number}_aligned", 6000, 47236, 101, cardinality, "text", _RCV1,
        remark=f"rcv1subset{number} with the labels of samples 3000 to 5999 moved back by {shift}; not the paper's.",
        files=FILES[f"rcv1subset{number}"], view=_RCV1_VIEW, family="rcv1",
        repairs=f"rcv1subset{number}", realigned=shift,
    )  # fmt: skip


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "scene", 2407, 294, 6, 1.074, "images",
        "Boutell et al., Learning multi-label scene classification, Pattern Recognition 37(9), 2004",
        files=FILES["scene"], paper_name="scene",
    ),
    Entry(
        "yeast", 2417, 103, 14, 4.237, "biology",
        "Elisseeff and Weston, A kernel method for multi-labelled classification, NIPS 2001",
        files=FILES["yeast"], paper_name="yeast",
    ),
    Entry(
        "Corel5k", 5000, 499, 374, 3.522, "images",
        "Duygulu et al., Object recognition as machine translation, ECCV 2002",
        files=FILES["Corel5k"], paper_name="Corel5k",
    ),
    _published_rcv1(1, 1, 2.880),
    _published_rcv1(2, 12, 2.634),
    _published_rcv1(3, 14, 2.614),
    Entry(
        "yahoo-Arts1", 7484, 23146, 26, 1.654, "text", _YAHOO,
        remark="The paper prints cardinality 1.67.",
        files=FILES["yahoo-Arts1"], family="yahoo", paper_name="yahoo-Arts1",
        view=View(2314, 25, 0.1, 2), aliases=("yahoo-Arts",),
    ),
    Entry(
        "yahoo-Business1", 11214, 21924, 30, 1.599, "text", _YAHOO,
        remark="The paper prints cardinality 1.47.",
        files=FILES["yahoo-Business1"], family="yahoo", paper_name="yahoo-Business1",
        view=View(2192, 28, 0.1, 2), aliases=("yahoo-Business",),
    ),
    Entry(
        "bibtex", 7395, 1836, 159, 2.402, "text",
        "Katakis et al., Multilabel text classification for automated tag suggestion, ECML PKDD Discovery "
        "Challenge 2008",
        files=FILES["bibtex"], paper_name="bibtex",
    ),
    Entry(
        "tmc2007-500", 28596, 500, 22, 2.158, "text",
        "Srivastava and Zane-Ulman, Discovering recurring anomalies in text reports regarding complex space systems, "
        "IEEE Aerospace Conference 2005",
        remark="500 features where the paper has 490: the paper took 1 % of the full 49,060-feature file, which is "
        "not published in the pinned repository.",
        files=FILES["tmc2007-500"], family="tmc2007", paper_name="tmc2007", aliases=("tmc2007",),
    ),
    Entry(
        "enron", 1702, 1001, 53, 3.378, "text",
        "Klimt and Yang, The Enron corpus: a new dataset for email classification research, ECML 2004",
        files=FILES["enron"], paper_name="enron",
    ),
    Entry(
        "cal500", 502, 68, 174, 26.044, "music",
        "Turnbull et al., Semantic annotation and retrieval of music and sound effects, IEEE TASLP 16(2), 2008",
        files=FILES["cal500"], paper_name="cal500",
    ),
    Entry(
        "LLOG-F", 1460, 1004, 75, 15.936, "text", _LANGLOG,
        defects="Its 75 'labels' are words, and 75 of its features are the labels: the file was made from one with "
        "the labels first, read as if they came last. The paper's numbers are those of this file; langlog is the "
        "correct reading.",
        files=FILES["LLOG-F"], family="langlog", paper_name="LLOG-F", aliases=("LLOG",),
    ),
    Entry(
        "langlog", 1460, 1004, 75, 1.180, "text", _LANGLOG,
        remark="The correct reading of LLOG-F; not the paper's.",
        files=FILES["langlog"], family="langlog", repairs="LLOG-F",
    ),
    _aligned_rcv1(1, 1, 2.895),
    _aligned_rcv1(2, 12, 2.890),
    _aligned_rcv1(3, 14, 2.905),
    Entry(
        "emotions", 593, 72, 6, 1.868, "music",
        "Trohidis et al., Multi-label classification of music into emotions, ISMIR 2008",
        remark="Not in the paper; small enough for quick tests.",
        files=FILES["emotions"],
    ),
    Entry(
        "digits", 2000, 64, 10, 2.020, "images",
        "Alpaydin and Kaynak, Optical recognition of handwritten digits, UCI Machine Learning Repository, 1998",
        remark="Made from scikit-learn's digits: one to three laid over each other.",
    ),
    Entry(
        "synthetic", 1000, 20, 8, 2.572, "generated", "none",
        remark="Labels from a Gaussian of known correlation; see make_synthetic.",
    ),
)  # fmt: skip
