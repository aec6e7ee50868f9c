"""Successors that keep the groups of an earlier agreement, without whole clusters or atoms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Identity, Member, Policy, Schedule
from secagg.agreement import Agreement, Kept, Prospect, Terms, audit_training, prospect, successor_terms
from secagg.agreement.file import read, write
from secagg.agreement.keeping import together
from secagg.agreement.proposal import Proposal
from secagg.agreement.transport import Transport
from secagg.cli.main import main
from secagg.crypto.certificates import CertificatePair
from secagg.errors import AgreementRefused, UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.exposure.schedules import components
from secagg.simulation.agree import agree_on, make_agreement
from tests.secagg.drbg import Drbg

REPORT = Policy(anonymity=2, min_survivors=2, max_leverage=1.0, mode=REPORT_EVEN_IF_EXPOSED)


def first(members: int = 12, size: int = 3, **more: Any) -> tuple[Agreement, dict[int, Identity]]:
    more.setdefault("entropy", Drbg(b"keep"))
    return make_agreement(members=members, size=size, length=1, clip=1.0, rounds=4, **more)


def groups(agreement: Agreement, round: int = 0) -> set[tuple[int, ...]]:
    return set(agreement.groups(round).values())


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_groups_of_a_successor_are_those_of_before_without_the_leavers(data: st.DataObject) -> None:
    """Whatever leaves, twice in a row: no new group, nobody in half a group, and the audit finds nothing new."""
    name = data.draw(st.sampled_from(["fixed", "atoms"]))
    size = data.draw(st.sampled_from([2, 4])) if name == "atoms" else data.draw(st.integers(2, 3))
    groupings = data.draw(st.integers(1, 2)) if name == "fixed" else 1
    atom = 2 if name == "atoms" else 0
    n = data.draw(st.integers(4 * size, 8 * size))
    agreement, identities = first(n, size, schedule=name, atom=atom, groupings=groupings, policy=REPORT)
    before, earlier = agreement, [agreement]
    for step in range(2):
        leavers = data.draw(st.sets(st.sampled_from(before.terms.ids), min_size=1, max_size=2))
        try:
            terms = successor_terms(before, leavers, name=f"step {step}")
        except UsageError as nobody:  # everybody is connected, or what is left is too small for a group
            known = ("no group would be left", "too few for one group", "set groupings=1")
            if not any(words in str(nobody) for words in known):
                raise
            return
        now = agree_on(terms, identities, Drbg(b"step %d" % step))
        now.check(earlier)
        units = before_units(before)
        assert leavers.isdisjoint(now.terms.ids)
        for unit in units:
            assert set(unit) <= set(now.terms.ids) or set(unit).isdisjoint(now.terms.ids)
        if name == "fixed":
            assert groups(now) == {group for group in groups(before) if set(group) <= set(now.terms.ids)}
            expected = {v for part in components(before.groupings(0)) if leavers & set(part) for v in part} | leavers
            assert set(before.terms.ids) - set(now.terms.ids) == expected
        else:
            assert before_units(now) <= units
        union = audit_training(now, earlier)
        assert union.anonymity.lower == audit_training(agreement).anonymity.lower
        before, earlier = now, [*earlier, now]


def before_units(agreement: Agreement) -> set[tuple[int, ...]]:
    terms = agreement.terms
    return set(together(terms.keep, terms.schedule, terms.ids, agreement.seed))


def test_a_leaver_with_its_cluster_passes_where_new_groups_do_not() -> None:
    agreement, identities = first()
    kept = agree_on(successor_terms(agreement, [5], name="without 5"), identities)
    kept.check([agreement])
    fresh = agree_on(replace(kept.terms, keep=None), identities)
    if groups(fresh) != groups(kept):
        with pytest.raises(AgreementRefused, match="policy"):
            fresh.check([agreement])


def test_a_sample_is_drawn_of_the_kept_groups_with_the_new_seed() -> None:
    agreement, identities = first(24, 3, sample=6)
    kept = agree_on(successor_terms(agreement, [5], name="without 5", last_round=30), identities)
    kept.check([agreement])
    lasting = {g for t in agreement.terms.rounds for g in groups(agreement, t)}
    drawn = [frozenset(groups(kept, t)) for t in kept.terms.rounds]
    assert {len(one) for one in drawn} == {2}
    assert len(set(drawn)) > 1
    everything = set().union(*drawn)
    assert len(everything) == 7
    assert all(set(a) == set(b) or set(a).isdisjoint(b) for a in everything for b in lasting)


def test_the_weights_of_leavers_count_in_what_was_opened_before() -> None:
    """Who is left has equal weights, but the sums of before had unequal ones."""
    weights = [5 if v == 5 else 4 for v in range(12)]
    agreement, identities = first(weights=weights)
    kept = agree_on(successor_terms(agreement, [5], name="without 5"), identities)
    kept.check([agreement])
    assert set(kept.terms.weights.values()) == {4}
    found = audit_training(kept, [agreement])
    assert (found.worst, found.leverage) == (5, pytest.approx(25 / (25 + 16 + 16)))


def test_all_members_go_on_in_their_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreement, identities = first()
    more = agree_on(successor_terms(agreement, [], name="more", last_round=9), identities)
    more.check([agreement])
    assert groups(more) == groups(agreement)
    assert read(write(Proposal.of(more))).agreement == more
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(write(Proposal.of(agreement)))
    assert main(["agree", str(old), "--successor", str(new)]) == 0
    assert "with 12 members in the groups of before" in capsys.readouterr().out
    assert main(["agree", str(new), "--earlier", str(old)]) == 0
    assert "With the earlier agreements together, the audit: it passes." in capsys.readouterr().out
    with pytest.raises(AgreementRefused, match="seed"):
        agree_on(replace(more.terms, name="x", keep=Kept(bytes(32), ())), identities).check([agreement])


def test_the_prospect_of_new_groups_is_counted() -> None:
    agreement, _ = first()
    kept = successor_terms(agreement, [5], name="without 5")
    assert prospect(kept, [agreement]) == Prospect(1, 1)
    found = prospect(replace(kept, keep=None), [agreement], 5)
    assert (found.draws, found.passed) == (5, 0)
    assert "policy" in found.why
    with pytest.raises(AgreementRefused, match="predecessors"):
        prospect(kept, [])
    changed = replace(kept.members[0], weight=7)
    with pytest.raises(AgreementRefused, match="weights stay"):
        prospect(replace(kept, members=(changed, *kept.members[1:])), [agreement])


def test_kept_groups_are_whole() -> None:
    agreement, _ = first()
    terms = successor_terms(agreement, [5], name="without 5")
    gone = terms.keep.dropped if terms.keep else ()
    half = replace(agreement.terms, name="half", predecessors=(agreement.fingerprint,))
    others = [v for v in gone if v != 5]
    members = tuple(member for member in half.members if member.id != 5)
    with pytest.raises(UsageError, match=f"leave out {others[0]}, {others[1]} too"):
        replace(half, members=members, keep=Kept(agreement.seed, (5,)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"predecessors": ()}, "keep: expected the agreement whose groups are kept"),
        ({"keep": Kept(bytes(32), (0, 1, 2))}, "is still a member|a successor drops"),
        ({"schedule": Schedule(name="random", size=3), "last_round": 0}, "'random' groups are new in every round"),
        ({"groups": "survivors", "policy": Policy(memory="round")}, "keep: only for groups = 'whole'"),
        ({"keep": "all"}, "keep: expected Kept, got str"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, Any], why: str) -> None:
    terms = successor_terms(first()[0], [5], name="without 5")
    with pytest.raises(UsageError, match=why):
        replace(terms, **changes)


@pytest.mark.parametrize(
    ("seed", "dropped", "why"),
    [
        (bytes(31), (1,), "keep.seed: expected 32 bytes"),
        (bytes(32), (2, 1), "keep.dropped: expected at most 65535"),
        (bytes(32), (1, 1), "keep.dropped: expected at most 65535"),
        (bytes(32), (-1,), "dropped"),
        (bytes(32), 7, "dropped: expected a collection"),
    ],
)
def test_kept_groups_of_the_wrong_form_are_refused(seed: bytes, dropped: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Kept(seed, dropped)


def hostile(terms: Terms, seed: bytes, gone: set[int]) -> Terms | None:
    """A proposal with groups of the proposer's choice: a seed that it searched, where nobody's group is cut."""
    members = tuple(member for member in terms.members if member.id not in gone)
    try:
        return replace(terms, members=members, keep=Kept(seed, tuple(sorted(gone))))
    except UsageError:
        return None


def test_nobody_chooses_groups_by_keeping_what_was_never_agreed() -> None:
    """A proposer tries seeds until the victim is among its colluders. The terms look right; the check finds it."""
    agreement, identities = first(9, 3)
    gone = set(next(iter(groups(agreement))))
    victim, *others = [v for v in agreement.terms.ids if v not in gone]
    base = replace(agreement.terms, name="successor", predecessors=(agreement.fingerprint,))
    found = None
    for number in range(10**5):
        terms = hostile(base, number.to_bytes(32, "big"), gone)
        if terms and tuple(sorted((victim, *others[:2]))) in groups(made := agree_on(terms, identities)):
            found = made
            break
    assert found is not None
    with pytest.raises(AgreementRefused, match=r"groups\.keep\.seed: expected the seed"):
        found.check([agreement])


PAIRS = Policy(anonymity=2)


def test_kept_members_are_those_of_before() -> None:
    """With invented members among the dropped ones, the same seed draws other groups."""
    for number in range(200):
        agreement, identities = first(4, 2, policy=PAIRS, entropy=Drbg(b"%d" % number))
        base = replace(agreement.terms, name="more", predecessors=(agreement.fingerprint,))
        terms = hostile(base, agreement.seed, {100, 101})
        if terms and groups(made := agree_on(terms, identities)) != groups(agreement):
            break
    else:
        pytest.fail("no seed was found that keeps the strangers together")
    with pytest.raises(AgreementRefused, match="100 was no member"):
        made.check([agreement])
    policy = replace(PAIRS, memory="round")  # also where each round is promised alone: the groups are chosen
    with pytest.raises(AgreementRefused, match="100 was no member"):
        agree_on(replace(terms, policy=policy), identities).check([agreement])


def test_kept_groups_have_the_schedule_of_before() -> None:
    for number in range(200):
        agreement, identities = first(6, 2, policy=PAIRS, entropy=Drbg(b"%d" % number))
        try:
            terms = successor_terms(agreement, [0], name="one group", schedule=Schedule(name="fixed", size=4))
        except UsageError:  # the other schedule cuts a group
            continue
        with pytest.raises(AgreementRefused, match=r"groups\.keep: expected the schedule"):
            agree_on(terms, identities).check([agreement])
        return
    pytest.fail("no seed was found that cuts no group")


def test_atoms_may_be_in_groups_of_another_size() -> None:
    agreement, identities = first(24, 6, schedule="atoms", atom=3)
    terms = successor_terms(agreement, [5], name="larger", schedule=Schedule(name="atoms", size=9, atom=3))
    now = agree_on(terms, identities)
    now.check([agreement])
    atoms = {atom for cell in agreement.cells(0) for atom in cell.atoms}
    assert all(len([a for a in atoms if set(a) <= set(group)]) == 3 for group in groups(now, 2))


def test_an_id_does_not_pass_to_another_member() -> None:
    """The sum with the old member minus the sum with the new one would show the difference of two updates."""
    agreement, identities = first(12, 12)
    stranger = Identity.generate()
    members = tuple(
        replace(member, identity=stranger.public) if member.id == 4 else member for member in agreement.terms.members
    )
    terms = replace(agreement.terms, name="swapped", members=members, predecessors=(agreement.fingerprint,))
    with pytest.raises(AgreementRefused, match="id 4 belonged to another identity"):
        agree_on(terms, {**identities, 4: stranger}).check([agreement])


def test_a_successor_has_the_certificates_of_those_that_are_left() -> None:
    agreement, identities = first(9, 3)
    hub, *sites = (CertificatePair.generate().certificate for _ in range(10))
    transport = Transport(hubs=("https://hub.example:8443",), hub=hub, members=tuple(sites))
    networked = agree_on(replace(agreement.terms, transport=transport), identities)
    terms = successor_terms(networked, [5], name="without 5")
    assert terms.transport is not None
    assert terms.transport.members == tuple(sites[v] for v in terms.ids)
    agree_on(terms, identities).check([networked])


def test_successor_terms_refuse_what_makes_no_successor() -> None:
    agreement, _ = first(6, 3)
    for leavers, name, why in (
        ([77], "new", "client 77"),
        ([1], "simulation", "another name"),
        ([0, 1, 2, 3, 4, 5], "new", "no group would be left"),
    ):
        with pytest.raises(UsageError, match=why):
            successor_terms(agreement, leavers, name=name)


def test_the_command_writes_a_successor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agreement, identities = first()
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(write(Proposal.of(agreement)))
    assert main(["agree", str(old), "--successor", str(new), "--without", "5"]) == 0
    assert "3 members leave together" in capsys.readouterr().out
    terms = read(new.read_text()).terms
    assert terms == successor_terms(agreement, [5], name="new")
    made = agree_on(terms, identities)
    new.write_text(write(Proposal.of(made)))
    assert main(["agree", str(new), "--earlier", str(old)]) == 0
    assert read(new.read_text()).agreement.groups(0) == made.groups(0)
    assert main(["agree", str(old), "--successor", str(new), "--without", "5"]) == 2  # it exists
    assert main(["agree", str(old), "--without", "5"]) == 2  # where to?


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[groups.keep]\nseed", "[groups.keep]\nsede", "groups.keep.sede: unknown key; did you mean 'seed'?"),
        ('seed = "', 'seed = "00', "groups.keep.seed: expected 64 lower-case hexadecimal digits"),
        ("dropped = [", "dropped = [true, ", "groups.keep.dropped: expected a list of the members that left"),
        ("dropped = [", "dropped = 3 #", "groups.keep.dropped: expected a list of the members that left"),
    ],
)
def test_a_mistake_in_the_file_names_the_key(old: str, new: str, says: str) -> None:
    text = write(Proposal(terms=successor_terms(first()[0], [5], name="new")))
    assert old in text
    with pytest.raises(UsageError, match=says):
        read(text.replace(old, new, 1))


def test_a_predecessor_that_keeps_a_made_up_seed_is_refused() -> None:
    """Whoever writes a successor could otherwise search for a seed that groups a victim with colluders."""
    agreement, identities = first(15)
    terms = agreement.terms
    made_up = bytes(32)
    phantoms = set(terms.schedule.draw(terms.ids, made_up, 0)[0][0])
    real = tuple(member for member in terms.members if member.id not in phantoms)
    others = {v: Identity.generate() for v in (100, 101, 102)}
    unknown = tuple(Member(v, identity.public) for v, identity in others.items())
    stranger = agree_on(replace(terms, name="strangers", members=unknown), others)
    inventing = replace(
        terms,
        name="phantoms",
        members=tuple(member for member in terms.members if member.id in phantoms),
        predecessors=(stranger.fingerprint,),
        keep=Kept(made_up, tuple(member.id for member in real)),
    )
    invented = agree_on(inventing, identities)
    keeping = replace(
        terms,
        name="real",
        members=real,
        predecessors=(stranger.fingerprint, invented.fingerprint),
        keep=Kept(made_up, tuple(sorted(phantoms))),
    )
    with pytest.raises(AgreementRefused, match=r"groups\.keep\.seed"):
        agree_on(keeping, identities).check((stranger, invented))


def test_at_most_65535_members_have_left() -> None:
    assert len(Kept(bytes(32), tuple(range(65535))).dropped) == 65535
    with pytest.raises(UsageError, match=r"keep.dropped: expected at most 65535 .*, got 65536; list the members that"):
        Kept(bytes(32), tuple(range(65536)))


def test_whoever_is_still_a_member_has_not_left() -> None:
    terms = successor_terms(first()[0], [5], name="new")
    assert terms.keep is not None
    wrong = Kept(terms.keep.seed, tuple(sorted((*terms.keep.dropped, *terms.ids[2:4]))))
    with pytest.raises(UsageError, match=rf"^keep.dropped: member {terms.ids[2]} is still a member; list only those"):
        replace(terms, keep=wrong)


def test_a_successor_follows_an_agreement() -> None:
    with pytest.raises(UsageError, match=r"^earlier: expected an agreement"):
        successor_terms("agreement", [5], name="new")  # type: ignore[arg-type]
