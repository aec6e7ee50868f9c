"""One record of a run with survivors against the agreement: who signed what, what could be opened, and what was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from secagg.agreement.agreement import Agreement
from secagg.agreement.plan import Plan
from secagg.crypto.keys import check_public_key
from secagg.errors import PeerError, SecAggError, WireError
from secagg.evidence import blame, charges
from secagg.evidence import run_statements as statements
from secagg.evidence.record import printable
from secagg.evidence.rounds import Claim
from secagg.evidence.runs import RunRecord, every_group
from secagg.exposure.audit import Verdict
from secagg.types import ClientId


@dataclass(slots=True)
class CheckedRun:
    """A record with what follows from it. `signed` are the signatures that are still to be verified.

    `views` has the hash of U2 as each survivor must have seen it, `verdict` what the opened sums reveal. `blamed` are
    those whom the record convicts if its signatures are right.
    """

    record: RunRecord
    problems: list[str] = field(default_factory=list)
    signed: list[Claim] = field(default_factory=list)
    views: dict[ClientId, bytes] = field(default_factory=dict)
    plan: Plan | None = None
    verdict: Verdict | None = None
    blamed: dict[ClientId, str] = field(default_factory=dict)
    doubted: dict[ClientId, int] = field(default_factory=dict)

    @property
    def round(self) -> int:
        return self.record.round

    @property
    def where(self) -> str:
        return f"round {self.record.round}, cell {self.record.cell}"


class _Run(blame.Court):
    """The record of a run, with its parts by client."""

    @cached_property
    def inputs(self) -> tuple[ClientId, ...]:
        return tuple(one.sender for one in self.record.inputs)

    def view(self, client: ClientId) -> bytes:
        """U2 as this client must have seen it: everybody's dealings, or those of its neighbourhood."""
        if not self.plan.degree:
            return self._common
        return self._view([v for v in self.plan.peers(client) if v in self.dealings])

    @cached_property
    def _common(self) -> bytes:
        return self._view(sorted(self.dealings))

    def _view(self, dealers: Sequence[ClientId]) -> bytes:
        return statements.view(self.plan, [(self.adverts[v], self.dealings[v]) for v in dealers])


def check_run(agreement: Agreement, record: RunRecord) -> CheckedRun:
    """Everything about one record but its signatures, which are returned, and its place among the others."""
    checked = CheckedRun(record)
    if record.round not in agreement.terms.rounds:
        return checked  # reported with the order of the records
    try:
        plan = agreement.plan(record.round, record.cell, record.context)
    except SecAggError as bad:
        checked.problems.append(f"{checked.where}: {bad}")  # audit: evidence-run-plan
        return checked
    run = _Run(plan, record)
    found = [*_strangers(run), *_lists(record)]
    if not found:
        found += _stages(run)
    if not found:  # what follows looks messages up by their senders
        checked.plan = plan
        found += [*_signed(run, checked), *_shown(run), *_opened(run, checked, agreement), *_ends(run)]
        found += _charge(agreement, run)
        checked.doubted = blame.doubted(run)
        checked.blamed, unproved = blame.convicted(run)
        found += unproved
    checked.problems += [f"{checked.where}: {text}" for text in found]
    return checked


def _messages(record: RunRecord) -> Mapping[str, list[ClientId]]:
    lists: dict[str, Sequence[Any]] = {
        "adverts": record.adverts,
        "dealings": record.dealings,
        "masked inputs": record.inputs,
        "signed openings": record.openings,
        "unmaskings": record.unmaskings,
    }
    return {name: [message.sender for message in messages] for name, messages in lists.items()}


def _strangers(run: _Run) -> Iterator[str]:
    record = run.record
    named = {sender for senders in _messages(record).values() for sender in senders}
    named |= {one.client for one in (*record.absent, *record.unproved)}
    named |= {*(one.sender for one in record.early), *(one.dealer for one in record.shown), *record.about()}
    strangers = sorted(named.difference(run.plan.ids))
    if strangers:  # audit: evidence-run-members
        yield f"it names client {strangers[0]}, who is not in this run"


def _lists(record: RunRecord) -> Iterator[str]:
    """Each list in order and without repetition: one answer per client and stage, one end per group."""
    lists: dict[str, list[Any]] = {**_messages(record)}  # audit: evidence-run-one-answer
    lists["early signatures"] = [one.sender for one in record.early]  # audit: evidence-run-lists-in-order
    lists["lost groups"] = [one.group for one in record.lost]  # audit: evidence-run-lists-in-order
    lists["absent clients"] = [one.client for one in record.absent]  # audit: evidence-run-lists-in-order
    lists["shown dealings"] = [one.dealer for one in record.shown]  # audit: evidence-run-lists-in-order
    lists["wrong unmaskings"] = [one.sender for one in record.wrong]  # audit: evidence-run-lists-in-order
    lists["wrong dealings"] = [one.dealer for one in record.dealt]  # audit: evidence-run-lists-in-order
    # audit: evidence-run-lists-in-order
    lists["clients blamed without a proof"] = [one.client for one in record.unproved]
    for what, keys in lists.items():
        if keys != sorted(set(keys)):
            yield f"its {what} are not in order, or one is there twice"


def _stages(run: _Run) -> Iterator[str]:
    """Who answers a stage has answered the one before, and a stage begins if at least t clients did."""
    t, stages = run.plan.t, list(_messages(run.record).items())
    for (before, earlier), (name, senders) in pairwise(stages):
        strange = sorted(set(senders).difference(earlier))
        if strange:  # audit: evidence-run-stages
            yield f"client {strange[0]} is among its {name} and not among its {before}"
        if senders and len(earlier) < t:  # audit: evidence-run-threshold
            yield f"it has {name}, but only {len(earlier)} {before}; the threshold is {t}"
    name, senders = stages[-1]
    if run.record.sums and len(senders) < t:  # audit: evidence-run-opened-threshold
        yield f"it has opened sums, but only {len(senders)} {name}; the threshold is {t}"
    for one in run.record.inputs:
        if not set(one.disputes) <= run.dealings.keys() - {one.sender}:  # audit: evidence-run-disputes-dealers
            yield f"client {one.sender} disputes a client that dealt nothing"
    wrong = {*run.adverts}.difference(run.inputs) ^ {one.sender for one in run.record.early}
    if wrong:  # audit: evidence-run-early-signed
        yield f"client {min(wrong)} must have either a masked input or an early signature, and not both"


def _signed(run: _Run, checked: CheckedRun) -> Iterator[str]:
    """The keys, and every signature with what it must be over."""
    plan, record, signed = run.plan, run.record, checked.signed
    for keys in record.adverts:
        try:
            check_public_key(keys.channel)  # audit: evidence-run-channel-key
            check_public_key(keys.mask)  # audit: evidence-run-mask-key
        except PeerError as bad:
            yield f"the advert of client {keys.sender}: {bad}"
        if keys.channel == keys.mask:  # audit: evidence-run-keys-differ
            yield f"the advert of client {keys.sender}: channel key and mask key are the same"
    for early in record.early:
        keys = run.adverts[early.sender]
        if dealt := run.dealings.get(early.sender):
            # audit: evidence-run-dealing-signatures
            signed.append((early.sender, early.signature, statements.dealing(plan, keys, dealt), "dealing"))
        else:
            # audit: evidence-run-advert-signatures
            signed.append((early.sender, early.signature, statements.advert(plan, keys), "advert"))
    for one in record.inputs:
        checked.views[one.sender] = seen = run.view(one.sender)
        statement = statements.masked_input(plan, seen, one)
        signed.append((one.sender, one.signature, statement, "masked input"))  # audit: evidence-run-input-signatures
    if record.openings:  # everybody signs the same: the common view, or none in sparse mode
        statement = statements.opening(plan, run.view(record.openings[0].sender), record.inputs, run.groups)
    for endorsed in record.openings:
        # audit: evidence-run-opening-signatures
        signed.append((endorsed.sender, endorsed.signature, statement, "opening"))
    for given in record.unmaskings:
        statement = statements.unmasking(plan, given.sender, given.content)
        # audit: evidence-run-unmasking-signatures
        signed.append((given.sender, given.signature, statement, "unmasking"))


def _shown(run: _Run) -> Iterator[str]:
    """The dealings that are shown are those that the proofs are about, and have the hashes that were signed."""
    record = run.record
    if more := sorted({one.dealer for one in record.shown} - record.about()):  # audit: evidence-run-shown-needed
        yield f"it shows a dealing of client {more[0]}, and no proof is about it"
    for one in record.shown:
        if one.dealer not in run.shown:  # audit: evidence-run-shown-dealings
            signed = "does not have the signed hash, or not as many commitments as groupings"
            yield f"the dealing that it shows of client {one.dealer} {signed}"


def _opened(run: _Run, checked: CheckedRun, agreement: Agreement) -> Iterator[str]:
    """The survivors signed only groups that the audit of these survivors allows, and only those are opened."""
    plan, record = run.plan, run.record
    # audit: evidence-run-lost-groups-agreed
    if strange := {*record.closed, *(one.group for one in record.lost)}.difference(every_group(plan)):
        yield f"it lists group {min(strange)} as closed or lost, but the plan has no such group"
    if record.closed and not record.openings:  # audit: evidence-run-closed-signed
        yield "it lists closed groups, but nobody signed an opening"
    if len(run.inputs) >= plan.t:
        checked.verdict = plan.audit(run.summed)
        refused = sorted(set(run.groups) - checked.verdict.opened)
        if refused:  # audit: evidence-run-audited
            why = checked.verdict.closed[refused[0]]
            yield f"group {refused[0]} was to be opened, and the audit closes it: {why}"
        # audit: evidence-run-sparse
        if (
            plan.degree
            and record.openings
            and plan.sparse_risk(len(plan.ids) - len(run.inputs)) > agreement.sparse_risk
        ):
            yield "it was opened after too many dropouts: the sparse graph may be disconnected"
    try:
        opened = record.opened(plan)
    except WireError as bad:
        yield str(bad)
        return
    if beyond := opened.keys() - {*run.groups}:  # audit: evidence-run-opened-signed
        yield f"group {min(beyond)} was opened, and the survivors did not sign it"
    if opened and record.failed:  # audit: evidence-run-failed-opens-nothing
        yield "it failed, and groups were opened"
    # audit: evidence-run-inconsistent
    if not {group for part in record.inconsistent for group in part} <= opened.keys():
        yield "it calls a group inconsistent that was not opened"


def _ends(run: _Run) -> Iterator[str]:
    """Who did not answer to the end has a reason, unless the whole run failed. Reasons are text."""
    record = run.record
    gave, absent = {one.sender for one in record.unmaskings}, {one.client for one in record.absent}
    silent = sorted(set(run.plan.ids).difference(gave, absent))
    if silent and not record.failed:  # audit: evidence-run-silence-explained
        yield f"client {silent[0]} did not answer to the end, and nothing says why"
    both = sorted(gave & absent & run.summed)
    if both:  # audit: evidence-run-absent-or-summed
        yield f"client {both[0]} is both absent and summed to the end"
    reasons = [one.reason for one in record.lost] + [one.reason for one in (*record.absent, *record.unproved)]
    if not all(reasons):  # audit: evidence-run-reasons-given
        yield "a lost group, an absent client or a blamed one has no reason"
    if not printable((*reasons, record.failed)):  # audit: evidence-run-texts-printable
        yield "a reason is not printable text in UTF-8"


def _charge(agreement: Agreement, run: _Run) -> Iterator[str]:
    """The record charges what the agreement's noise makes of those who sent their vectors."""
    record = run.record
    groups = charges.summed_in(run.plan, run.inputs, run.groups)
    paid = [one.sender for one in record.unmaskings]
    expected = {
        "reserved": charges.highest_reserved(agreement, run.inputs),
        "settled": charges.highest_settled(agreement, paid, groups),
    }
    for name, found in {"reserved": record.reserved, "settled": record.settled}.items():
        if found != expected[name]:  # audit: evidence-run-charge
            asked = charges.text(expected[name])
            yield f"its {name} charge is {charges.text(found)}, and the agreement asks for {asked}"
