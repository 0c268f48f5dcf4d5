"""The search for what the model predicts: in the first steps until it is proven, and checked once per epoch after."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_ubs._utils.distributed import gather_objects
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values
from lightning_ubs.reading.heads import BackwardPass, Group, Head, Place, Watched, grouped, main_groups
from lightning_ubs.reading.loss_graph import TermPlace
from lightning_ubs.reading.predictions import Kind
from lightning_ubs.reading.proof import PASSED, Evidence, Proof
from lightning_ubs.reading.refusals import masked, mixed, moved, not_pulled, other_rows, other_scale, several
from lightning_ubs.reading.scale import Scale

# Steps of a fit in which every head of the loss is looked at in any case, those in which heads that may be meant as
# well are told apart, and those in which evidence is gathered until it is enough.
FIRST_STEPS, RIVAL_STEPS, EVIDENCE_STEPS = 4, 32, 500

VERIFIED = "verified: the loss pulls them to the labels"
UNSHOWN = "the loss pulls them to the labels; not verified is what it does to them first, such as a temperature"
UNDECIDED = "not verified yet: the first batch shows too little"
NO_LABELS = "not verified: neither the dataset nor the batch shows labels that fit them"
REFUTED = "not verified: the loss does not pull them to the labels"
OTHER_VALUES = "not verified: what the loss shows has other values"


class Search:
    """Everything that may be the predictions, what speaks for it so far, and what was chosen.

    Evidence is kept over the steps of a fit; heads, which are part of a graph, only within their step.

    Args:
        ids: What planned ids are verified by; False or ids of its own answer for labels that do not fit.
        trusts_scale: Whether the user says which the predictions are, or what they hold, and answers for their scale.
    """

    def __init__(self, ids: Any, trusts_scale: bool = False) -> None:
        self._ids, self._trusts_scale = ids, trusts_scale
        self._passes: list[BackwardPass] = []
        self.begin_fit()

    def begin_fit(self) -> None:
        """Begin a fit, of which nothing is known."""
        #: Where predictions are read; None until that is clear.
        self.place: Place | None = None
        #: Whether that was proven, in words.
        self.status = ""
        #: Places of the chosen head in the graph of the loss.
        self.ways: list[TermPlace] = []
        #: Backward passes of a step in which something else stands at the same places.
        self.other_passes: set[int] = set()
        #: Number of labels, if it is known.
        self.num_labels: int | None = None
        # All places of the chosen head, by the backward pass of a step.
        self._terms: dict[int, tuple[TermPlace, ...]] = {}
        self._evidence: dict[Place, Evidence] = {}
        self._later, self._doubts = Evidence(), 0
        self._steps = 0
        self._has_rivals = True
        self._refusal: SelectionError | None = None
        self.end_step()

    def end_step(self) -> None:
        """Keep nothing of the graph."""
        for one in self._passes:
            one.stop()
        self._passes = []
        self._shared: list[Head] | None = None
        #: Labels of the samples of this step, the surest first.
        self.labels: list[Tensor] = []

    @property
    def is_open(self) -> bool:
        """Whether every head of a step is to be looked at, because it is not clear yet which one is meant."""
        if self.place is None or self._steps < FIRST_STEPS or self._has_rivals:
            return True
        return self.status == UNDECIDED and self._steps < EVIDENCE_STEPS

    @property
    def has_looked(self) -> bool:
        """Whether the heads of this step were looked at."""
        return bool(self._passes)

    def look(self, loss: Tensor, rows: int, labels: list[Tensor], watched: list[Watched]) -> None:
        """Find every head of a loss before its backward pass, which then shows how the loss pulls at it.

        Once it is clear which head is read, that one alone, as long as the loss has the same form.
        """
        self.labels, number = labels, len(self._passes)
        terms = () if self.is_open or self.status != VERIFIED else self._terms.get(number, ())
        self._passes.append(BackwardPass(loss, rows, labels, watched, number, terms))

    @property
    def unfitting(self) -> list[tuple[int, ...]]:
        """Shapes of what in the losses of this step has no row per sample."""
        return [shape for one in self._passes for shape in one.unfitting]

    @property
    def heads(self) -> list[Head]:
        """Those of this step."""
        return [head for one in self._passes for head in one.heads()] if self._shared is None else self._shared

    def share(self, world_size: int) -> None:
        """Add up what all ranks saw in the step's backward passes, which are over, so that they decide alike."""
        self._steps += 1
        self._shared = self.heads
        if world_size == 1:
            return
        others = gather_objects({head.place: head.evidence for head in self._shared if head.evidence is not None})
        for head in self._shared:
            seen = [one[head.place] for one in others if head.place in one]
            head.evidence = sum(seen[1:], seen[0]) if seen else None

    def groups(self) -> list[Group]:
        """Heads of this step by what they read; those that no labels fit only where there are no others."""
        width = self.num_labels or next((one.shape[1] for one in self.labels if one.ndim == 2), None)
        heads = self.heads
        proven = [head for head in heads if head.evidence is not None]
        other = [head for head in heads if width is None or head.width == width or head.kind is Kind.SOFTMAX]
        return grouped(proven or other, self._evidence)

    # Choosing

    def choose(self, groups: list[Group], rows: int) -> Group | None:
        """The one group that is proven, or that alone may be; None to wait for more evidence.

        Args:
            groups: Groups of this step.
            rows: Number of samples of this rank.

        Raises:
            SelectionError: If it cannot be told which.
        """
        proven = main_groups(groups, Proof.PROVEN)
        if proven:
            is_early = self._steps < RIVAL_STEPS and any(_may_be_made(one, proven) for one in groups)
            return None if is_early else self._only(proven, rows)
        # What the loss compares with the labels is meant, even where other terms are made of it as well.
        unknown = main_groups([one for one in groups if one.is_matched] or groups, Proof.OPEN)
        if unknown and all(group.evidence is None for group in unknown):
            return self._only(unknown, rows)
        likely = [one for one in unknown if one.is_likely or not one.is_pulled]
        if len(likely) == 1:
            return self._only(likely, rows)
        main = unknown or main_groups(groups, Proof.REFUTED)
        self._refusal = self._refused(main)
        if unknown and self._refusal is not None and self._steps < RIVAL_STEPS:
            return None
        self.give_up()
        return self._only(main[:1], rows) if main else None

    def give_up(self) -> None:
        """Refuse where no head could be chosen so far; the end of an epoch is the time for it."""
        if self.place is None and self._refusal is not None:
            raise self._refusal

    def _refused(self, groups: list[Group]) -> SelectionError | None:
        likely = [one for one in groups if one.proof is Proof.OPEN and one.is_likely]
        if len(likely) > 1:
            return several(likely)
        is_one = len({one.heads[0].origin for one in groups}) < 2
        return None if is_one and all(map(self.believes, groups)) else not_pulled(groups)

    def _only(self, groups: list[Group], rows: int) -> Group:
        if len(groups) > 1:
            views = {shape[0] for shape in self.unfitting if len(shape) == 2 and shape[0] % rows == 0}
            if views and all(group.is_of_module for group in groups):
                raise other_rows("this step", views.pop(), rows)
            raise several(groups)
        if groups[0].readable is None:
            raise masked(groups[0])
        return groups[0]

    def believes(self, group: Group) -> bool:
        """Whether the user answers for the rows: targets whose ids are verified may be changed on purpose."""
        return self._ids is False or (self._ids is not None and bool(group.targets))

    def settle(self, place: Place, group: Group | None, width: int) -> None:
        """Read at ``place`` from now on, which shows the head of ``group``."""
        self.place, self.num_labels = place, width
        if group is not None:
            terms = [head.place.term for head in group.heads if head.place.term is not None]
            self.ways = terms if place.term is None else [place.term]
            numbers = {head.place.backward_pass for head in group.heads}
            twins = {head.place.backward_pass for head in self.heads if head.place.term in self.ways}
            self.other_passes = {number for number in twins if number < min(numbers)}
            self._terms = _terms_of(group, self.heads)
        if group is None:
            self.status = OTHER_VALUES
        elif group.evidence is None:
            self.status = NO_LABELS
        else:
            self.status = {Proof.PROVEN: self._verified(group), Proof.REFUTED: REFUTED, Proof.OPEN: UNDECIDED}[
                group.proof
            ]
            self._check_scale(group)

    @property
    def announced(self) -> str:
        """What is said of the proof: without verified ids it is one of predictions, not of whose they are."""
        of_whom = "; not verified, with ids=False, is of which samples" if self._ids is False else ""
        return f"{self.status}{of_whom}"

    def _verified(self, group: Group) -> str:
        """What a proof of the direction says: of what only a module shows, the scale has to be shown as well."""
        if group.scale is Scale.OPEN and not self._trusts_scale:
            return UNDECIDED
        return VERIFIED if group.scale is Scale.SHOWN else UNSHOWN

    def _check_scale(self, group: Group) -> None:
        """Refuse logits of another scale than that of the loss."""
        is_named = self.place is not None and self.place.source in ("returned", "function")
        if group.evidence is not None and group.evidence.is_moved and not is_named:
            raise moved(group)
        if group.scale is Scale.OTHER and not is_named and not self._trusts_scale:
            raise other_scale(group)

    def is_chosen(self, head: Head) -> bool:
        """Whether a head stands where predictions are read."""
        known = head.place.term in self.ways and head.place.backward_pass not in self.other_passes
        return known or head.place == self.place

    def current(self, groups: list[Group]) -> Group | None:
        """The group of this step that was chosen, or would be; None where it is not among them or not clear."""
        if self.place is not None:
            for group in groups:
                if any(map(self.is_chosen, group.heads)):
                    return group
        proven = main_groups(groups, Proof.PROVEN)
        if proven or (self.place is not None and self.place.source == "loss"):
            return proven[0] if len(proven) == 1 else None
        possible = [group for group in groups if group.proof is not Proof.REFUTED] or groups
        return possible[0] if len(possible) == 1 and _tells(possible[0]) else None

    # What later steps show

    def note(self, is_named: bool) -> None:
        """Remember the evidence of a step, and refuse where another head turns out to be pulled to the labels as well.

        Args:
            is_named: Whether the user named the predictions, so that others are none.
        """
        groups = self.groups()
        proven = main_groups(groups, Proof.PROVEN)
        if self.place is not None and not is_named and len(proven) > 1:
            raise several(proven)
        for head in self.heads:
            if head.evidence is not None:
                self._evidence[head.place] = self._evidence.get(head.place, Evidence()) + head.evidence
        undecided = [one for one in main_groups(groups, Proof.OPEN) if one.evidence is not None and one.is_likely]
        self._has_rivals = not is_named and bool(undecided) and self._steps < RIVAL_STEPS

    def check(self, groups: list[Group], raw: Tensor) -> None:
        """See whether what was read is still what the labels pull: complete the proof, or warn before stopping.

        Args:
            groups: Groups of this step.
            raw: (rows, q) that was read.
        """
        head = self._head_of(groups, raw)
        if head is None or head.evidence is None or _rises(head.evidence):
            return
        self._later = self._later + head.evidence
        if self.status == UNDECIDED:
            self._check_scale(Group([head], self._later))
        if self._later.proof is Proof.PROVEN:
            if self.status == UNDECIDED:
                self.status = self._verified(Group([head], self._later))
                if self.status == UNDECIDED:
                    return
                rank_zero_info(f"Predictions read from {head.text}: {self.announced}.")
            self._later, self._doubts = Evidence(), 0
        elif self._later.proof is Proof.REFUTED and not self.believes(Group([head], None, head.targets)):
            shown, self._later = self._later, Evidence()
            if self.status == UNDECIDED or self._doubts:
                raise not_pulled([Group([head], shown)])
            self._doubts += 1
            rank_zero_warn(
                f"The loss no longer pulls the predictions ({head.text}) to the labels of the planned samples "
                f"({shown.decisive:.2f} of its gradient, {PASSED} is needed); if later epochs show the same, training "
                "stops. Keep the order of the samples, or pass ids=False if labels are changed on purpose.",
                category=UserWarning,
            )

    def _head_of(self, groups: list[Group], raw: Tensor) -> Head | None:
        heads = [head for group in groups for head in group.heads]
        own = [head for head in heads if self.is_chosen(head)]
        if own:
            return own[0]
        return next((head for head in heads if head.shows(raw)), None)

    def check_mixed(self, where: str) -> None:
        """Refuse targets of several samples, also where mixing begins in a later epoch or comes in some batches."""
        if self._ids is False or not self.labels:
            return
        group = self.current(self.groups())
        if group is not None and self._are_mixed(group.pulled_targets, self.labels):
            raise mixed(where)

    @staticmethod
    def _are_mixed(targets: tuple[Tensor, ...], labels: list[Tensor]) -> bool:
        if not targets or not labels:
            return False
        target, label = targets[0].cpu(), labels[0].cpu()
        verdict = compare(target, label) if len(target) == len(label) else Verdict.INCOMPARABLE
        if verdict is Verdict.MIXED or (verdict is Verdict.INCOMPARABLE and has_mixed_values(target)):
            return True
        return any(are_rows_permuted(target, other.cpu()) for other in targets[1:])


def _terms_of(group: Group, heads: list[Head]) -> dict[int, tuple[TermPlace, ...]]:
    """Where the loss shows the head of a group, in each backward pass; nothing if it does not show it as it is."""
    one = group.heads[0]
    same = [head for head in heads if head.origin == one.origin and head.variant == one.variant]
    terms: dict[int, tuple[TermPlace, ...]] = {}
    for head in same:
        if head.place.source != "loss" or head.place.term is None or head.predictions is None:
            return {}
        if head.changes or head.is_told_by_labels or (head.sign is not None and bool((head.sign < 0).any())):
            return {}
        number = head.place.backward_pass
        terms[number] = (*terms.get(number, ()), head.place.term)
    return terms


def _tells(group: Group) -> bool:
    """Whether targets of what is not proven yet say something of the samples; the same for all are of another task."""
    return group.is_likely or any(bool((one != one[:1]).any()) for one in group.targets)


def _may_be_made(group: Group, proven: list[Group]) -> bool:
    """Whether what the loss compares with the labels may be this, made of what is proven; more steps will tell."""
    head = group.heads[0]
    if group.proof is not Proof.OPEN or not group.is_likely or not head.is_told_by_labels:
        return False
    return any(one.is_of_module or head.origin in one.heads[0].inside for one in proven)


def _rises(evidence: Evidence) -> bool:
    """Whether a step went up all along, as where a loss below some level is to rise; it says nothing of the rows."""
    return all(share is None or share <= 1 - PASSED for share in evidence.shares)
