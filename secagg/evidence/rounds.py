"""One record against the agreement: what could be answered, what was, and what was opened."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from secagg.agreement.agreement import Agreement
from secagg.agreement.terms import Terms
from secagg.crypto.keys import check_public_key
from secagg.errors import PeerError
from secagg.evidence import charges, statements
from secagg.evidence.record import AnswerRecord, RoundRecord, SignedKey, printable, shown
from secagg.types import ClientId, Group, GroupId

SLACK: Final = 1e-9  # a computed 1/3 can be slightly above a written 1/3
Claim = tuple[ClientId, bytes, bytes, str]  # who signed, the signature, what, and how it is called


@dataclass(slots=True)
class CheckedRound:
    """A record with what follows from it. `signed` are the signatures that are still to be verified.

    `chain` has hash and predecessor of each answer, `drawn` the clients of this round's groups, `asked` those with a
    complete group. `blamed` are those whom the record convicts if its signatures are right.
    """

    round: int
    problems: list[str] = field(default_factory=list)
    signed: list[Claim] = field(default_factory=list)
    chain: dict[ClientId, tuple[bytes, bytes]] = field(default_factory=dict)
    drawn: frozenset[ClientId] = frozenset()
    asked: frozenset[ClientId] = frozenset()
    absent: dict[ClientId, str] = field(default_factory=dict)
    blamed: dict[ClientId, str] = field(default_factory=dict)


class _Layout:
    """Who is summed with whom in this round, from the agreement, the adverts, the releases and the roll call."""

    def __init__(self, agreement: Agreement, record: RoundRecord) -> None:
        self.agreement, self.record = agreement, record
        self.groups = agreement.groups(record.round)
        self.flat = len(self.groups) == 1
        self.adverts = {advert.sender: advert for advert in record.adverts}
        self.released = {release.sender for release in record.releases}
        self.members = {group: self._summed(members) for group, members in self.groups.items()}
        present = agreement.terms.roll_call and objection(agreement.terms, record.present)
        self.complete = [] if present else [g for g, summed in sorted(self.members.items()) if self._advertised(summed)]
        self.seats: dict[ClientId, list[GroupId]] = {}
        for group in self.complete:
            for client in self.members[group]:
                self.seats.setdefault(client, []).append(group)
        self.everybody = {client for members in self.groups.values() for client in members}
        self._seen: dict[GroupId, bytes] = {}

    def _summed(self, members: Group) -> Group:
        terms = self.agreement.terms
        if terms.roll_call:
            return tuple(client for client in members if client in self.record.present)
        if not self.flat:
            return members
        rest = tuple(client for client in members if client not in self.released)
        return members if objection(terms, rest) else rest  # audit: evidence-rest-keeps-limits

    def _advertised(self, members: Group) -> bool:
        return all(client in self.adverts for client in members)

    def seen(self, group: GroupId) -> bytes:
        if group not in self._seen:
            shown = [self.adverts[client] for client in self.members[group]]
            self._seen[group] = statements.seen(self.agreement.fingerprint, self.record.round, group, shown)
        return self._seen[group]


def objection(terms: Terms, rest: Sequence[ClientId]) -> str:
    """Why a flat sum of these members breaks the limits of the agreement, or nothing."""
    if len(rest) < terms.least_summed:  # audit: evidence-enough-summed
        return f"{len(rest)} members are summed, and the agreement asks for {terms.least_summed}"
    squares = [terms.weights[client] ** 2 for client in rest]
    if max(squares) / sum(squares) > terms.policy.max_leverage + SLACK:  # audit: evidence-summed-leverage
        return f"the leverage of a member is {max(squares) / sum(squares):.3f}, above {terms.policy.max_leverage:g}"
    return ""


def check_round(agreement: Agreement, record: RoundRecord) -> CheckedRound:
    """Everything about one record but its signatures, which are returned, and its place among the others."""
    checked = CheckedRound(record.round)
    if record.round not in agreement.terms.rounds:
        return checked  # reported with the order of the rounds
    strangers = _strangers(agreement, record)
    if strangers:  # audit: evidence-members-only
        checked.problems.append(f"round {record.round}: it names client {strangers[0]}, who is not a member")
        return checked
    layout = _Layout(agreement, record)
    checked.drawn, checked.asked = frozenset(layout.everybody), frozenset(layout.seats)
    checked.absent = {one.client: shown(one.reason) for one in record.absent}
    found = [*_lists(record), *_adverts(layout, checked), *_releases(layout, checked), *_answers(layout, checked)]
    found += [*_opened(layout, checked), *_texts(record), *_charge(layout)]
    checked.problems += [f"round {record.round}: {text}" for text in found]
    return checked


def _strangers(agreement: Agreement, record: RoundRecord) -> list[ClientId]:
    lists: tuple[Sequence[Any], ...] = (record.adverts, record.releases, record.answers, record.second, record.after)
    named = {message.sender for messages in lists for message in messages}
    named |= {*record.present, *(one.client for one in record.absent)}
    named |= {key.sender for answer in (*record.answers, *record.second) for key in answer.ahead}
    return sorted(named.difference(agreement.terms.ids))


def _lists(record: RoundRecord) -> Iterator[str]:
    """Each list in order and without repetition, so that one client has one answer and one group one end."""
    lists: tuple[tuple[str, list[Any]], ...] = (
        ("releases", [one.sender for one in record.releases]),  # audit: evidence-lists-in-order
        ("answers", [one.sender for one in record.answers]),  # audit: evidence-one-answer
        ("second answers", [one.sender for one in record.second]),  # audit: evidence-lists-in-order
        ("later releases", [one.sender for one in record.after]),  # audit: evidence-lists-in-order
        ("opened groups", [one.group for one in record.opened]),  # audit: evidence-lists-in-order
        ("lost groups", [one.group for one in record.lost]),  # audit: evidence-lists-in-order
        ("absent clients", [one.client for one in record.absent]),  # audit: evidence-lists-in-order
    )
    for what, keys in lists:
        if keys != sorted(set(keys)):
            yield f"its {what} are not in order, or one is there twice"


def _adverts(layout: _Layout, checked: CheckedRound) -> Iterator[str]:
    fingerprint, round = layout.agreement.fingerprint, layout.record.round
    for advert in layout.record.adverts:
        if advert.round != round:  # audit: evidence-adverts-of-round
            yield f"it has an advert of client {advert.sender} for round {advert.round}"
        if advert.sender not in layout.everybody:  # audit: evidence-adverts-of-drawn
            yield f"it has an advert of client {advert.sender}, who is not drawn"
        try:
            check_public_key(advert.key)  # audit: evidence-keys-checked
        except PeerError as bad:
            yield f"the advert of client {advert.sender}: {bad}"
        checked.signed.append(_claim(fingerprint, advert))  # audit: evidence-advert-signatures


def _claim(fingerprint: bytes, advert: SignedKey) -> Claim:
    return advert.sender, advert.signature, statements.advert(fingerprint, advert), f"advert of round {advert.round}"


def _releases(layout: _Layout, checked: CheckedRound) -> Iterator[str]:
    terms, record = layout.agreement.terms, layout.record
    releases = (*record.releases, *record.after)
    # audit: evidence-no-release-with-roll-call
    if releases and (terms.roll_call or (layout.flat and terms.policy.memory == "training")):
        # audit: evidence-releases-allowed
        yield "it has a release, and the agreement allows none"
    for release in releases:
        statement = statements.release(layout.agreement.fingerprint, record.round, release.sender)
        # audit: evidence-release-signatures
        checked.signed.append((release.sender, release.signature, statement, "release"))
    if terms.roll_call:
        for client in record.present:
            if client not in layout.adverts:  # audit: evidence-present-advertised
                yield f"client {client} counts as present without an advert"
    elif record.present:  # audit: evidence-present-needs-roll-call
        yield "it has a roll call, and the agreement has none"


def _answers(layout: _Layout, checked: CheckedRound) -> Iterator[str]:
    """The hash of every answer, rebuilt from what it must have answered; and who is convicted by two signatures."""
    record, fingerprint = layout.record, layout.agreement.fingerprint
    for answer in record.answers:
        sender = answer.sender
        if sender in layout.released:  # audit: evidence-released-not-summed
            yield f"client {sender} released it, but its answer counts"
        hash = yield from _answer_hash(layout, checked, answer)
        checked.chain[sender] = (hash, answer.previous)
        # audit: evidence-ahead-signatures
        checked.signed += [_claim(fingerprint, advert) for advert in answer.ahead if advert.round > record.round]
    for answer in record.second:
        sender = answer.sender
        hash = yield from _answer_hash(layout, checked, answer)
        if sender in layout.released:
            checked.blamed[sender] = f"it signed an answer and a release of round {record.round}"
        elif checked.chain.get(sender, (hash,))[0] != hash:
            checked.blamed[sender] = f"it signed two different answers for round {record.round}"
        else:
            # audit: evidence-blame-proved
            yield f"it blames client {sender} without a proof"
    for release in record.after:
        if release.sender not in checked.chain:  # audit: evidence-release-blame-proved
            yield f"it blames client {release.sender} without a proof"
            continue
        checked.blamed[release.sender] = f"it signed an answer and a release of round {record.round}"


def _answer_hash(layout: _Layout, checked: CheckedRound, answer: AnswerRecord) -> Generator[str, None, bytes]:
    record, sender = layout.record, answer.sender
    groups = layout.seats.get(sender, [])
    if not groups:  # audit: evidence-answer-asked
        yield f"client {sender} answered without a complete group"
    # audit: evidence-ahead-own evidence-ahead-later
    if any(key.sender != sender or key.round <= record.round for key in answer.ahead):
        yield f"the answer of client {sender} brings an advert that is not its own, or not of a later round"
    shown = [layout.seen(group) for group in groups]
    hash = statements.answer_hash(layout.agreement.fingerprint, record.round, record.context, groups, shown, answer)
    # audit: evidence-answer-signatures
    checked.signed.append((sender, answer.signature, statements.answer(hash), "answer"))
    return hash


def _opened(layout: _Layout, checked: CheckedRound) -> Iterator[str]:
    """Every group of the agreement is opened or lost, and only a group whose members all answered is opened."""
    terms, record = layout.agreement.terms, layout.record
    opened, lost = {one.group for one in record.opened}, {one.group for one in record.lost}
    complete = set(layout.complete)
    for group in sorted(opened):
        if group not in layout.groups:  # audit: evidence-group-permitted
            yield f"group {group} was opened, and the agreement permits no such group"
            continue
        missing = [client for client in layout.members[group] if client not in checked.chain]
        if missing or group not in complete:  # audit: evidence-group-whole
            who = f"client {missing[0]} has no answer" if missing else "it was not complete"
            yield f"group {group} was opened, but {who}"
    if opened & lost:  # audit: evidence-group-one-end
        yield f"group {min(opened & lost)} is both opened and lost"
    if left := set(layout.groups).difference(opened, lost):  # audit: evidence-every-group-ends
        yield f"group {min(left)} is neither opened nor lost"
    if strange := lost.difference(layout.groups):  # audit: evidence-lost-groups-agreed
        yield f"group {min(strange)} is lost, and the agreement has no such group"
    if opened and len(opened) < terms.least_groups:  # audit: evidence-least-groups
        yield f"{len(opened)} groups were opened, and the agreement asks for {terms.least_groups}"
    if opened and record.skipped:  # audit: evidence-skipped-opens-nothing
        yield "it was skipped, and groups were opened"
    silent = sorted(checked.asked.difference(checked.chain, checked.absent))
    if silent and len(complete) >= terms.least_groups:  # audit: evidence-silence-explained
        yield f"client {silent[0]} was asked, and nothing says why it has no answer"
    answered_absent = sorted(checked.chain.keys() & checked.absent.keys())
    if answered_absent:  # audit: evidence-absent-or-answered
        yield f"client {answered_absent[0]} is both absent and among the answers"


def _charge(layout: _Layout) -> Iterator[str]:
    """The record charges what the agreement's noise makes of those who were asked."""
    record = layout.record
    expected = charges.highest(layout.agreement, record.round, {g: layout.members[g] for g in layout.complete})
    if record.charge != expected:  # audit: evidence-charge
        yield f"its charge is {charges.text(record.charge)}, and the agreement asks for {charges.text(expected)}"


def _texts(record: RoundRecord) -> Iterator[str]:
    """Reasons are text, and every lost group has one."""
    reasons = [lost.reason for lost in record.lost] + [one.reason for one in record.absent]
    if not all(reasons):  # audit: evidence-reasons-given
        yield "a lost group or an absent client has no reason"
    if not printable((*reasons, record.skipped)):  # audit: evidence-round-texts-printable
        yield "a reason is not printable text in UTF-8"
    opened, doubtful = {one.group for one in record.opened}, {group for part in record.inconsistent for group in part}
    if not doubtful <= opened:  # audit: evidence-inconsistent
        yield "it calls a group inconsistent that was not opened"
