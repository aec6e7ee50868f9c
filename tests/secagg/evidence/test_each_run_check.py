"""Every check of the verifier for survivors, one at a time: evidence in which everything else is right.

Proofs of blame are tried with what a malicious hub or a malicious client could make up: true shares in a wrong order,
hashes of nobody, leaves for strangers. The second verifier judges the same files.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from secagg import FileJournal, MemoryJournal, Plan, Stage, UsageError, codec, labels
from secagg.evidence import Absence, Evidence, LostGroup, RunRecord, run_journals, run_statements, verify
from secagg.evidence.blame import ENTRY, Court, convicted
from secagg.evidence.runs import DealtHashes, ShownDealing, ShownShare, WrongDealing, WrongUnmasking
from tests.secagg.cheats import CHEATS
from tests.secagg.cluster import Cluster, identity, make_inputs, make_plan, plan_from
from tests.secagg.evidence import second_runs as second
from tests.secagg.evidence.common import flipped
from tests.secagg.evidence.run_common import agreed, changed, evidence_of, played

Change = Callable[[RunRecord], RunRecord]
GONE = 2
DEALT: dict[int, ShownDealing] = {}  # of the run of `unmasked`
GROUPS = ((0, 0), (0, 1))  # of the agreement "groups"
SECRETS = 2  # the mask key and one seed: these plans have one grouping


@cache
def evidence(kind: str = "groups") -> bytes:
    """A run that client 2 leaves before it signs the opening."""
    return evidence_of(agreed(kind), [played(agreed(kind), stops={GONE: Stage.CONSISTENCY})])


def record_of(data: bytes) -> RunRecord:
    return Evidence.from_bytes(data).runs[0]


def objections(data: bytes) -> list[str]:
    """What the verifier says; the second one must object exactly if this one does."""
    problems = list(verify(data, threads=1).problems)
    assert bool(second.check(data)) == bool(problems)
    return problems


def only(data: bytes, says: str) -> None:
    """Exactly one objection, with these words."""
    problems = objections(data)
    assert len(problems) == 1
    assert says in problems[0]


def spoiled(change: Change) -> bytes:
    return changed(evidence(), 0, change)


def all_lost(record: RunRecord) -> RunRecord:
    return replace(record, sums=(), lost=tuple(LostGroup(*group, b"it is lost") for group in GROUPS))


def test_the_changed_evidence_holds_if_nothing_is_wrong_with_the_change() -> None:
    assert len(record_of(evidence()).sums) == 2
    for change in (lambda record: record, all_lost, lambda record: replace(all_lost(record), failed=b"it failed")):
        assert objections(spoiled(change)) == []


# --- the record -----------------------------------------------------------------------------------------------------


def test_a_record_is_of_a_cell_of_the_agreement() -> None:
    whole = Evidence.from_bytes(evidence())
    stranger = RunRecord(round=whole.runs[0].round, cell=3, context=b"")
    data = replace(whole, runs=(*whole.runs, stranger)).to_bytes()
    only(data, "round 5, cell 3: ")


def backwards(name: str) -> Change:
    def change(record: RunRecord) -> RunRecord:
        messages = getattr(record, name)
        assert len(messages) == 2
        return replace(record, **{name: messages[::-1]})

    return change


def test_every_list_is_in_order() -> None:
    """Messages of stages have a test of their own. Each list is right but for its order."""
    flat, groups = agreed("flat"), agreed("groups")
    stops = {1: Stage.UNMASKING, 3: Stage.UNMASKING}
    bad_dealers = played(groups, cheats=dict.fromkeys(stops, "commits to another seed"), stops=stops)
    left_early = played(groups, stops={1: Stage.SHARES, 3: Stage.INPUTS})
    lists = {
        "early": (evidence_of(groups, [left_early]), "early signatures"),
        "lost": (spoiled(all_lost), "lost groups"),
        "absent": (evidence_of(groups, [played(groups, stops=stops)]), "absent clients"),
        "wrong": (evidence_of(flat, [played(flat, cheats={1: "a wrong nonce", 3: "a share too few"})]), "unmaskings"),
        "shown": (evidence_of(groups, [bad_dealers]), "shown dealings"),
        "dealt": (evidence_of(groups, [bad_dealers]), "wrong dealings"),
        "unproved": (
            spoiled(lambda one: replace(one, unproved=tuple(Absence(v, b"it cheats") for v in (1, 3)))),
            "clients blamed without a proof",
        ),
    }
    for name, (data, says) in lists.items():
        assert objections(data) == [], name
        only(changed(data, 0, backwards(name)), f"{says} are not in order")


def test_closed_groups_are_signed() -> None:
    def unsigned(record: RunRecord) -> RunRecord:
        return replace(all_lost(record), openings=(), unmaskings=(), failed=b"nobody signed")

    assert objections(spoiled(unsigned)) == []
    closed = spoiled(lambda record: replace(unsigned(record), closed=GROUPS[:1]))
    only(closed, "it lists closed groups, but nobody signed an opening")


def test_what_was_closed_is_part_of_what_was_signed() -> None:
    """The hub says that the survivors signed one group less, and calls it lost."""
    fewer = replace(record_of(evidence()), closed=GROUPS[1:], sums=record_of(evidence()).sums[:1])
    lie = spoiled(lambda one: replace(fewer, lost=(LostGroup(*GROUPS[1], b"the audit closes it"),)))
    wrong = [f"round 5: the signature of client {v} on its opening is wrong" for v in (0, 1, 3, 4, 5)]
    assert objections(lie) == wrong
    opened = spoiled(lambda one: replace(one, closed=GROUPS[1:]))
    assert objections(opened)[0] == "round 5, cell 0: group (0, 1) was opened, and the survivors did not sign it"


def test_every_group_has_one_end_and_is_one_of_the_plan() -> None:
    both = spoiled(lambda one: replace(one, lost=(LostGroup(*GROUPS[0], b"it is lost"),)))
    only(both, "it has 2 sums for the 1 groups that are not lost")
    neither = spoiled(lambda one: replace(one, sums=one.sums[1:]))
    only(neither, "it has 1 sums for the 2 groups that are not lost")
    strange = spoiled(lambda one: replace(one, lost=(LostGroup(5, 0, b"it is lost"),)))
    only(strange, "it lists group (5, 0) as closed or lost, but the plan has no such group")
    closed = spoiled(lambda one: replace(one, closed=((5, 0),)))
    only(closed, "it lists group (5, 0) as closed or lost, but the plan has no such group")


def test_a_run_that_failed_opens_nothing() -> None:
    only(spoiled(lambda one: replace(one, failed=b"too few")), "it failed, and groups were opened")


def test_nobody_is_both_absent_and_summed_to_the_end() -> None:
    data = spoiled(lambda one: replace(one, absent=(Absence(0, b"it left"), *one.absent)))
    only(data, "client 0 is both absent and summed to the end")


def with_text(name: str, text: bytes) -> Change:
    def change(record: RunRecord) -> RunRecord:
        base = replace(all_lost(record), unproved=(Absence(1, b"it cheats"),))
        if name == "failed":
            return replace(base, failed=text)
        first, *rest = getattr(base, name)
        return replace(base, **{name: (replace(first, reason=text), *rest)})

    return change


@pytest.mark.parametrize("name", ["lost", "absent", "unproved"])
def test_losses_absences_and_blame_have_reasons(name: str) -> None:
    only(spoiled(with_text(name, b"")), "a lost group, an absent client or a blamed one has no reason")


@pytest.mark.parametrize("name", ["lost", "absent", "unproved", "failed"])
def test_reasons_are_printable(name: str) -> None:
    for text in (b"gone\nThe evidence holds.", b"\xff"):
        only(spoiled(with_text(name, text)), "a reason is not printable text in UTF-8")


# --- a wrong unmasking ------------------------------------------------------------------------------------------------


@cache
def unmasked() -> tuple[bytes, Mapping[int, WrongUnmasking], Mapping[int, bytes]]:
    """A run in which client 2 deals and sends no vector; what each client gave; and all hashes of each dealer."""
    agreement = agreed("groups")
    plan = plan_from(agreement, b"model")
    cluster = Cluster(plan, make_inputs(plan), cheats={GONE: CHEATS["silence at input"]}).start()
    result = cluster.finish()
    sent = {v: messages[-1] for v, messages in cluster.sent.items() if v != GONE}
    given = {
        v: WrongUnmasking(v, one.own, one.seed_owners, one.seeds, one.key_owners, one.keys, ())
        for v, one in sent.items()
    }
    dealings = cluster.server._memory.dealings
    hashes = {v: bytes(dealing.hashes) for v, dealing in dealings.items()}
    DEALT.update({v: ShownDealing(v, dealings[v].commitments, dealings[v].root) for v in sorted(dealings)})
    return evidence_of(agreement, [result]), given, hashes


def accused(change: Callable[[WrongUnmasking], WrongUnmasking]) -> bytes:
    """Client 1 gives something else and signs it, and the record shows it."""
    data, given, _ = unmasked()
    one = change(given[1])

    def shown(record: RunRecord) -> RunRecord:
        plan, content = agreed("groups").plan(record.round, 0, record.context), run_statements.content(one)
        signature = identity(1).sign(run_statements.unmasking(plan, 1, content))
        unmaskings = tuple(
            replace(told, content=content, signature=signature) if told.sender == 1 else told
            for told in record.unmaskings
        )
        return replace(record, unmaskings=unmaskings, shown=(DEALT[1],), wrong=(one,))

    return changed(data, 0, shown)


def convicts(data: bytes, says: str) -> None:
    report = verify(data, threads=1)
    assert report.holds, report.problems
    assert report.blamed == {1: says}
    assert second.check(data) == ""
    assert second.blamed(data) == {1}


def test_what_an_honest_client_gave_convicts_it_of_nothing() -> None:
    only(accused(lambda one: one), "it blames client 1 without a proof")


def test_a_wrong_number_of_own_seeds_convicts() -> None:
    convicts(accused(lambda one: replace(one, own=one.own + bytes(32))), "it signed the wrong number of its own seeds")


def ascending(*owners: int) -> tuple[int, ...]:
    return tuple(sorted(owners))


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_shares_of_the_wrong_kind_convict(kind: str) -> None:
    """A share of the seed of client 2, which is not summed; a share of the mask key of client 3, which is."""
    if kind == "seeds":
        changed = accused(
            lambda one: replace(one, seed_owners=ascending(*one.seed_owners, GONE), seeds=one.seeds + bytes(ENTRY))
        )
    else:
        changed = accused(
            lambda one: replace(one, key_owners=ascending(*one.key_owners, 3), keys=one.keys + bytes(ENTRY))
        )
    convicts(changed, "it signed shares of the wrong kind")


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_wrong_number_of_shares_convicts(kind: str) -> None:
    data = accused(lambda one: replace(one, **{kind: getattr(one, kind) + bytes(ENTRY)}))
    convicts(data, "it signed the wrong number of shares")


def test_a_share_of_a_client_that_is_no_peer_convicts() -> None:
    """In sparse mode a client deals to its neighbours only."""
    plan = make_plan(8, degree=4, threshold=3, colluders=3)
    cluster = Cluster(plan, make_inputs(plan)).start()
    record = RunRecord.from_bytes(cluster.finish().record)
    sent = cluster.sent[1][-1]
    stranger = next(v for v in plan.ids if 1 not in plan.peers(v))
    for more, blamed in (((), {}), ((stranger,), {1: f"it signed a share of client {stranger}, who dealt it none"})):
        owners = ascending(*sent.seed_owners, *more)
        seeds = sent.seeds + bytes(ENTRY) * len(more)
        given = WrongUnmasking(1, sent.own, owners, seeds, sent.key_owners, sent.keys, ())
        unmaskings = tuple(
            replace(one, content=run_statements.content(given)) if one.sender == 1 else one for one in record.unmaskings
        )
        found, _ = convicted(Court(plan, replace(record, unmaskings=unmaskings, wrong=(given,))))
        assert found == blamed


def test_hashes_of_a_client_that_dealt_nothing_prove_nothing() -> None:
    agreement = agreed("groups")
    result = played(agreement, cheats={1: "a wrong seed share"}, stops={GONE: Stage.SHARES})
    data = evidence_of(agreement, [result])
    (proof,) = record_of(data).wrong
    assert GONE not in {one.sender for one in record_of(data).dealings}
    false = replace(proof, dealt=(replace(proof.dealt[0], dealer=GONE),))
    shown = tuple(one for one in record_of(data).shown if one.dealer == 1)
    only(changed(data, 0, lambda one: replace(one, wrong=(false,), shown=shown)), "it blames client 1 without a proof")


# --- a wrong dealing --------------------------------------------------------------------------------------------------


class Dealer:
    """A client that deals shares of its own choice, and signs the root of their hashes."""

    def __init__(self, holders: tuple[int, ...], value: int) -> None:
        self.record = record_of(unmasked()[0])
        self.plan: Plan = agreed("groups").plan(self.record.round, 0, self.record.context)
        self.shares = {v: ShownShare(v, value.to_bytes(33, "little"), bytes(32)) for v in holders}
        self.hashes = b"".join(
            run_statements.share_hash(self.plan, 3, v, secret, shown.share + shown.nonce)
            for v, shown in self.shares.items()
            for secret in range(SECRETS)
        )

    def court(self, hashes: bytes | None = None) -> Court:
        root = run_statements.root(self.hashes if hashes is None else hashes, SECRETS * 32)
        shown = replace(DEALT[3], root=root)
        hash = run_statements.dealing_hash(shown)
        dealings = tuple(replace(one, hash=hash) if one.sender == 3 else one for one in self.record.dealings)
        return Court(self.plan, replace(self.record, dealings=dealings, shown=(shown,)))

    def judged(self, secret: int = 0) -> tuple[dict[int, str], list[str]]:
        proof = WrongDealing(3, secret, self.hashes, tuple(self.shares.values()))
        return convicted(replace(self.court(), record=replace(self.court().record, dealt=(proof,))))


def test_hashes_that_are_no_whole_leaves_prove_nothing() -> None:
    """A dealer signs the root over leaves of which the last one lacks a hash."""
    dealer = Dealer((0, 1, 2, 4), 5)
    assert dealer.court().dealt(3, dealer.hashes)
    ragged = dealer.hashes[:-32]
    assert dealer.court(ragged).dealt(3, ragged) is None
    assert dealer.court().dealt(3, b"") is None


def test_shares_of_a_number_that_is_too_large_convict_their_dealer() -> None:
    for value in (2**256, 2**256 + 5, 5):
        assert Dealer((0, 1, 2, 4), value).judged() == ({3: "its own shares do not give its mask key"}, [])
    assert Dealer((0, 1, 2, 4), 2**256).judged(secret=1)[0] == {3: "its own shares do not give its seed of grouping 0"}


def test_a_share_for_somebody_else_convicts_no_dealer() -> None:
    assert Dealer((0, 1, 2, 77), 5).judged() == ({}, ["it blames client 3 without a proof"])


def true_shares(kind: str, dealer: int, holders: tuple[int, ...]) -> WrongDealing:
    """Shares that an honest dealer made, as if they were a proof."""
    _, given, hashes = unmasked()
    shares = []
    for holder in holders:
        owners, entries = given[holder].seed_owners, given[holder].seeds
        if kind == "mask key":
            owners, entries = given[holder].key_owners, given[holder].keys
        place = owners.index(dealer) * ENTRY
        entry = entries[place : place + ENTRY]
        shares.append(ShownShare(holder, entry[:33], entry[33:]))
    return WrongDealing(dealer, int(kind == "seed"), hashes[dealer], tuple(shares))


def framed(proof: WrongDealing) -> bytes:
    return changed(unmasked()[0], 0, lambda one: replace(one, shown=(DEALT[proof.dealer],), dealt=(proof,)))


@pytest.mark.parametrize(("kind", "dealer"), [("seed", 3), ("mask key", GONE)], ids=["seed", "mask key"])
def test_shares_that_give_the_secret_convict_no_dealer(kind: str, dealer: int) -> None:
    only(framed(true_shares(kind, dealer, (0, 1, 3, 4))), f"it blames client {dealer} without a proof")


def test_the_same_share_twice_convicts_no_dealer() -> None:
    """t shares, of which two are the same: they give another value than the secret."""
    for holders in ((0, 0, 1, 3), (0, 1, 4, 3)):
        only(framed(true_shares("seed", 3, holders)), "it blames client 3 without a proof")


@pytest.mark.parametrize("what", ["dealt", "wrong"])
def test_a_proof_needs_the_dealing_that_was_signed(what: str) -> None:
    """Without the dealing, or with another one, the same proof convicts nobody."""
    agreement = agreed("groups")
    cheat = "commits to another seed" if what == "dealt" else "masks with a seed it did not commit to"
    stops = {1: Stage.UNMASKING} if what == "dealt" else {}
    data = evidence_of(agreement, [played(agreement, cheats={1: cheat}, stops=stops)])
    assert set(verify(data, threads=1).blamed) == {1} == second.blamed(data)
    record = record_of(data)
    (mine,) = record.shown
    only(changed(data, 0, lambda one: replace(one, shown=())), "it blames client 1 without a proof")
    hash = "the dealing that it shows of client 1 does not have the signed hash, or"
    for other in (replace(mine, root=flipped(mine.root)), replace(mine, commitments=(flipped(mine.commitments[0]),))):
        spoiled = changed(data, 0, lambda one, other=other: replace(one, shown=(other,)))  # type: ignore[misc]
        shown, blames = objections(spoiled)
        assert shown.startswith(f"round 5, cell 0: {hash}")
        assert blames == "round 5, cell 0: it blames client 1 without a proof"


def test_a_shown_dealing_has_one_commitment_per_grouping() -> None:
    """A client that signs a dealing without commitments, and a hub that shows it: nobody could check a seed with it."""
    data, _, _ = unmasked()
    plan = agreed("groups").plan(record_of(data).round, 0, record_of(data).context)
    for commitments in ((), (bytes(32), bytes(32))):
        bare = ShownDealing(GONE, commitments, bytes(32))
        hash = run_statements.dealing_hash(bare)
        record = record_of(data)
        dealings = tuple(replace(one, hash=hash) if one.sender == GONE else one for one in record.dealings)
        assert GONE not in Court(plan, replace(record, dealings=dealings, shown=(bare,))).shown
    assert GONE in Court(plan, replace(record_of(data), shown=(DEALT[GONE],))).shown


def test_only_dealings_that_a_proof_is_about_are_shown() -> None:
    data, _, _ = unmasked()
    shown = changed(data, 0, lambda record: replace(record, shown=(DEALT[GONE],)))
    only(shown, "it shows a dealing of client 2, and no proof is about it")


def test_a_proof_is_about_clients_of_the_run() -> None:
    agreement = agreed("groups")
    data = evidence_of(agreement, [played(agreement, cheats={1: "a share too few"})])
    (proof,) = record_of(data).wrong
    assert proof.dealt == ()
    strange = replace(proof, dealt=(DealtHashes(77, b"any text"),))
    only(changed(data, 0, lambda one: replace(one, wrong=(strange,))), "it names client 77, who is not in this run")


def test_hashes_under_no_root_convict_no_dealer() -> None:
    proof = true_shares("seed", 3, (0, 1, 3, 4))
    for hashes in (flipped(proof.hashes), b"", proof.hashes[:-64]):
        only(framed(replace(proof, hashes=hashes)), "it blames client 3 without a proof")


# --- journals ---------------------------------------------------------------------------------------------------------


def with_journal(folder: Path) -> tuple[bytes, Path, Path]:
    """A run, and where the two records of client 3 about it are."""
    agreement, journal = agreed("flat"), FileJournal(folder)
    data = evidence_of(agreement, [played(agreement, journals=dict.fromkeys(agreement.terms.ids, journal))])
    of = identity(3).public, agreement.fingerprint, record_of(data).round
    names = [run_statements.record_name(label, *of) for label in (labels.UPDATE_RECORD, labels.OPENING_RECORD)]
    return data, folder / names[0], folder / names[1]


@pytest.mark.parametrize("name", ["plan", "view", "survivors", "inputs", "groups"])
def test_an_opening_in_a_journal_is_compared_field_by_field(name: str, tmp_path: Path) -> None:
    data, _, opening = with_journal(tmp_path)
    assert verify(data, journal=tmp_path).holds
    recorded: dict[str, Any] = codec.from_bytes(run_journals._OPENING, opening.read_bytes())
    value = recorded[name]
    other = flipped(value) if isinstance(value, bytes) else value[1:]
    opening.write_bytes(codec.to_bytes(run_journals._OPENING, {**recorded, name: other}))
    found = verify(data, journal=tmp_path).problems
    assert found == ("round 5: client 3 signed another opening than the evidence has",)


def test_a_journal_finds_a_run_that_was_left_out_although_its_client_signed_no_opening(tmp_path: Path) -> None:
    """Client 3 has only accepted the plan of the first run; the journal is its own."""
    agreement = agreed("flat")
    journals: Any = {**{v: MemoryJournal() for v in agreement.terms.ids}, 3: FileJournal(tmp_path)}
    first = played(agreement, stops={3: Stage.INPUTS}, journals=journals)
    data = evidence_of(agreement, [first, played(agreement, 1, journals=journals)])
    assert verify(data, journal=tmp_path).holds
    whole = Evidence.from_bytes(data)
    for place in range(2):
        rest = replace(whole, runs=whole.runs[:place] + whole.runs[place + 1 :]).to_bytes()
        assert objections(rest) == []
        left_out = f"round {5 + place}: client 3 took part in it, and the evidence leaves it out"
        assert verify(rest, journal=tmp_path).problems == (left_out,)


@pytest.mark.parametrize("which", ["plan", "opening"])
def test_a_damaged_record_of_a_journal_is_no_record(which: str, tmp_path: Path) -> None:
    data, plan, opening = with_journal(tmp_path)
    place, says = (plan, "the hash of a plan") if which == "plan" else (opening, "the record of an opening")
    content = place.read_bytes()
    for damaged in (b"", content[:-1], content + b"x"):
        place.write_bytes(damaged)
        with pytest.raises(UsageError, match=f"expected {says}; it is damaged"):
            verify(data, journal=tmp_path)
