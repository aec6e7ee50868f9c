"""The agreement as a file: it comes back as it was, and a mistake names the key, what was expected and what came."""

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import Member, Policy, Schedule, UsageError
from secagg.agreement import NamedPulse, Terms, commit
from secagg.agreement.file import read, read_floors, read_parts, write, write_part
from secagg.agreement.proposal import Proposal, Signature
from secagg.crypto import Segment
from secagg.errors import PeerError
from tests.secagg.agreement.common import beacon_terms, beaconed, made, pulse, signed

AGREEMENT, IDENTITIES = made()
SIGNED = signed(AGREEMENT)
TEXT = write(SIGNED)

printable = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=20)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
segment = st.builds(
    Segment,
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    clip=st.floats(1e-3, 1e3),
) | st.builds(Segment, shape=st.tuples(st.integers(1, 9)), bound=st.integers(1, 1000))


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    n = draw(st.integers(4, 9))
    ids = sorted(draw(st.sets(st.integers(0, 2**32 - 1), min_size=n, max_size=n)))
    keys = draw(st.lists(hashes, min_size=n, max_size=n, unique=True))
    names = draw(st.lists(st.just("") | printable, min_size=n, max_size=n, unique_by=lambda name: name or object()))
    weights = st.integers(1, 2**32 - 1)
    parts = draw(st.lists(segment, min_size=1, max_size=3))
    if len(parts) > 1 or draw(st.booleans()):
        parts = [replace(part, name=f"part {i}") for i, part in enumerate(parts)]
    whole = draw(st.booleans())
    survivors = {} if whole else {"groups": "survivors", "colluders": draw(st.none() | st.integers(0, 1))}
    memories = st.sampled_from(["training", "round"] if whole else ["round"])
    first, sample = draw(st.integers(0, 9)), draw(st.sampled_from([0, 4]))
    beacon = st.builds(
        NamedPulse, chain=st.integers(0, 9), time=st.integers(0, 10**8).map(lambda m: m * 60000), key=hashes
    )
    return Terms(
        name=draw(printable),
        members=tuple(Member(*m) for m in zip(ids, keys, names, [draw(weights) for _ in ids], strict=True)),
        segments=tuple(parts),
        schedule=Schedule(name=draw(st.sampled_from(["fixed", "random"])), size=2, groupings=1 + (sample == 0)),
        first_round=first,
        last_round=first + draw(st.integers(0, 2**62)),
        sample=sample,
        policy=Policy(anonymity=2, max_leverage=draw(st.floats(0.01, 1.0)), memory=draw(memories)),
        beacon=draw(st.none() | beacon),
        predecessors=tuple(draw(st.lists(hashes, max_size=2, unique=True))),
        **survivors,  # type: ignore[arg-type]
    )


@settings(deadline=None, max_examples=60)
@given(terms())
def test_terms_come_back_from_the_file_and_from_bytes(made_up: Terms) -> None:
    assert read(write(Proposal(terms=made_up))) == Proposal(terms=made_up)
    assert Terms.from_bytes(made_up.to_bytes()) == made_up
    assert read(write(Proposal(terms=made_up))).terms.hash == made_up.hash


@pytest.mark.parametrize("proposal", [SIGNED, signed(beaconed())], ids=["ceremony", "beacon"])
def test_an_agreement_comes_back_with_every_step(proposal: Proposal) -> None:
    again = read(write(proposal))
    assert again == proposal
    assert again.agreement.fingerprint == proposal.agreement.fingerprint
    assert list(again.problems()) == []
    assert write(again) == write(proposal)


def test_a_short_file_by_hand_is_enough() -> None:
    keys = [f'[[members]]\nidentity = "{bytes([i]).hex() * 32}"\n' for i in range(4)]
    text = 'version = 2\nname = "x"\nrounds.last = 9\ngroups.size = 4\nvector = { length = 3, clip = 1 }\n' + "".join(
        keys
    )
    found = read(text).terms
    assert found.ids == (0, 1, 2, 3)  # without ids, members are numbered in the order of the file
    assert (found.groups, found.schedule.name, found.first_round, found.policy) == ("whole", "fixed", 0, Policy())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("version = 2", "version = 1", "expected a file of version 2, got version 1; agree anew"),
        ("version = 2\n", "", "expected a file of version 2, got no version"),
        ("version = 2", "version = true", "got version True"),
        ("version = 2", "version = 2 2", "expected an agreement in TOML"),
        ('name = "simulation"', "name = 7", "name: expected text, got 7"),
        ('name = "simulation"', 'nmae = "x"', "nmae: unknown key; did you mean 'name'?"),
        ('name = "simulation"\n', "", "name: expected text, but the key is missing"),
        ("last = 4", "lst = 4", "rounds.lst: unknown key; did you mean 'last'?"),
        ("last = 4", "last = 4.0", "rounds.last: expected a whole number, got 4.0"),
        ("last = 4", "last = -1", "rounds.last: expected 0 to"),
        ("last = 4", "last = true", "rounds.last: expected a whole number, got True"),
        ('kind = "whole"', 'kind = "hole"', "groups.kind: expected one of whole, survivors, got 'hole'; did you mean"),
        ('schedule = "fixed"', 'schedule = "fxied"', "groups.schedule: .* did you mean 'fixed'"),
        ("size = 2", "", "groups.size: expected"),
        ("size = 2", "size = 9", "too few for one group of 9"),
        ("[groups]", "[gruops]", "gruops: unknown key; did you mean 'groups'?"),
        ("[policy]", "policy = 3\n[unused]", "unused: unknown key|policy: expected a table"),
        ("anonymity = 2", "anonimity = 2", "policy.anonimity: unknown key; did you mean 'anonymity'?"),
        ("max_leverage = 0", 'max_leverage = "high" # 0', "policy.max_leverage: expected a number, got 'high'"),
        ("[vector]", "[[segments]]", r"segments\[0\].name: expected text, but the key is missing"),
        ("length = 3", "shape = [1, 2.5]", "vector.shape: expected a list of at most 32 whole numbers"),
        ("length = 3", "length = 3\nshape = [3]", "vector: expected either length or shape"),
        ("clip = 1.0", "bound = -4", "vector.bound: expected 0 to"),
        ("id = 0\n", "", "an id for every member or for none, got 3 of 4"),
        ("id = 1\n", "id = 0\n", "strictly ascending"),
        ("id = 1\n", "idd = 1\n", r"members\[1\].idd: unknown key; did you mean 'id'?"),
        ('identity = "', 'identity = "zz', r"members\[0\].identity: expected 64 lower-case hexadecimal digits"),
        ('from = "ceremony"', 'from = "beacon"', "seed.commitments: only for from = 'ceremony'"),
        ('from = "ceremony"', "chain = 3", "seed.chain: only for from = 'beacon'"),
        ("[signatures]\n0", "[signatures]\nzero", "signatures.'zero': expected the id of a member"),
        ("[signatures]\n0", "[signatures]\n00", "signatures.'00': expected the id of a member"),
        ("[seed.reveals]\n0 = {", "[seed.reveals]\n0 = { x = 1, ", "seed.reveals.0.x: unknown key"),
        ("[seed.reveals]", "[seed.revels]", "seed.revels: unknown key; did you mean 'reveals'?"),
        ("[signatures]", "[segnatures]", "segnatures: unknown key; did you mean 'signatures'?"),
    ],
)
def test_a_mistake_names_the_key_what_was_expected_and_what_came(old: str, new: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=says) as refused:
        read(TEXT.replace(old, new, 1))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("time = 2026-08-31T19:04:00Z", "time = 2026-08-31T19:04:00", "expected a time with its zone"),
        ("time = 2026-08-31T19:04:00Z", "time = 2026-08-31T19:04:01Z", "expected a whole minute"),
        ("chain = 2\n", "", "seed.chain: expected a whole number, but the key is missing"),
        ('message = "', 'message = "Q', "seed.pulse.message: expected lower-case hexadecimal"),
    ],
)
def test_a_mistake_about_the_beacon_is_named(old: str, new: str, says: str) -> None:
    text = write(Proposal.of(beaconed()))
    assert old in text
    with pytest.raises(UsageError, match=says):
        read(text.replace(old, new, 1))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_damaged_file_is_a_proposal_or_a_usage_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([TEXT, BEACON]))
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key = lines[at].partition("=")[0]
        value = st.sampled_from(VALUES)
        lines[at] = data.draw(
            value.map(lambda value, key=key: f"{key}= {value}") | st.just("") | st.just(lines[at][:-1]) | printable
        )
    damaged = "\n".join(lines)
    with suppress(UsageError):
        list(read(damaged).problems())
    with suppress(UsageError):
        read_parts(damaged, SIGNED)
    with suppress(UsageError):
        read_floors(damaged)


BEACON = write(Proposal.of(beaconed()))
VALUES = ["0", "-1", "true", "[]", "{}", "[[]]", '""', '"x"', "1e400", "nan", "-0.0", "9" * 5000, "2**5", "1979-05-27"]
VALUES += ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:00-23:59", "[1, [2, 3]]", "{ a = { b = 1 } }", "[" * 2000]


# --- parts -------------------------------------------------------------------------------------------------


def test_parts_by_files_make_the_same_agreement() -> None:
    proposal = Proposal(terms=AGREEMENT.terms)
    for name in ("commitments", "reveals", "signatures"):
        parts = [write_part(SIGNED, part) for part in SIGNED.in_order(name)]
        for text in reversed(parts):
            proposal = proposal.add(read_parts(text, proposal))
    assert proposal == SIGNED
    assert proposal.add(read_parts(TEXT, proposal)) == SIGNED  # another copy of the whole file adds nothing new


def test_a_part_for_other_terms_is_refused() -> None:
    other = Proposal(terms=replace(AGREEMENT.terms, name="other"))
    for text in (TEXT, *(write_part(SIGNED, part) for part in (SIGNED.commitments[0], SIGNED.signatures[1]))):
        with pytest.raises(UsageError, match="made for other terms"):
            read_parts(text, other)


def test_a_part_may_be_of_a_member_with_any_id() -> None:
    for member in (0, 63, 64, 2**32 - 1):
        part = Signature(member, bytes(64))
        assert read_parts(write_part(SIGNED, part), SIGNED) == (part,)
    text = write_part(SIGNED, Signature(5, bytes(64))).replace("member = 5", f"member = {2**32}")
    with pytest.raises(UsageError, match=f"member: expected 0 to {2**32 - 1}"):
        read_parts(text, SIGNED)


def test_a_part_of_version_1_or_with_strange_keys_is_refused() -> None:
    text = write_part(SIGNED, SIGNED.commitments[0])
    for old, new, says in (
        ("version = 2", "version = 1", "expected a file of version 2, got version 1"),
        ("member = 0", "member = 0\nmembr = 1", "membr: unknown key; did you mean 'member'?"),
        ('part = "commitment"', 'part = "comitment"', "part: expected one of .* did you mean 'commitment'"),
        ("commitment = ", "contribution = ", "contribution: unknown key"),
    ):
        assert old in text
        with pytest.raises(UsageError, match=says):
            read_parts(
                text.replace(old, new, 1)
                if "part" in old or "version" in old or "member =" in old
                else re.sub(r"^commitment = ", new, text, flags=re.M),
                SIGNED,
            )


def test_a_tampered_step_is_found_and_its_member_named() -> None:
    for section in ("[seed.commitments]", "[seed.reveals]", "[signatures]"):
        before, _, after = TEXT.partition(section)
        line = next(line for line in after.splitlines() if line.startswith("2 = "))
        where = line.rindex('"') - 1
        wrong = line[:where] + ("0" if line[where] != "0" else "1") + line[where + 1 :]
        problems = list(read(before + section + after.replace(line, wrong, 1)).problems())
        assert problems[0].member == 2, section
        assert "member 2: " in problems[0].text
        assert "wrong signature" in problems[0].text


def test_what_is_missing_is_named() -> None:
    started = Proposal(terms=AGREEMENT.terms)
    assert [p.member for p in started.problems()] == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="no seed yet: member 0 has not committed"):
        _ = started.agreement
    with pytest.raises(UsageError, match="no commitment yet from member 0"):
        started.add([SIGNED.reveals[0]])
    waiting = Proposal(terms=beacon_terms(), approvals=Proposal.of(beaconed()).approvals)
    assert str(next(iter(waiting.problems()))) == "the pulse of 2026-08-31 19:04 UTC is missing"
    assert waiting.add([pulse()]).agreement == beaconed()
    wrong = replace(signed(beaconed()), pulse=replace(pulse(), signature=bytes(512)))
    assert [(p.member, p.text) for p in wrong.problems()] == [(None, "pulse: the beacon's signature is wrong")]


def test_two_steps_of_one_member_are_a_contradiction() -> None:
    other = commit(AGREEMENT.terms, 1, IDENTITIES[1], bytes(32))
    with pytest.raises(PeerError, match="member 1 signed two different commitments") as refused:
        SIGNED.add([other])
    assert refused.value.culprit == 1
    assert SIGNED.add(SIGNED.in_order("commitments")) == SIGNED


def test_a_contribution_that_does_not_match_its_commitment_is_refused_when_it_arrives() -> None:
    from secagg.agreement.origin import commitments_hash, sign_reveal

    shown = commitments_hash(AGREEMENT.terms, SIGNED.in_order("commitments"))
    wrong = sign_reveal(AGREEMENT.terms, 3, IDENTITIES[3], bytes(32), shown)
    committed = replace(SIGNED, reveals={}, signatures={})
    with pytest.raises(PeerError, match="contribution of member 3 does not match its commitment") as refused:
        committed.add([wrong])
    assert refused.value.culprit == 3


def test_a_wrong_signature_is_not_merged() -> None:
    unsigned = Proposal.of(AGREEMENT)
    with pytest.raises(PeerError, match="client 0: wrong signature"):
        unsigned.add([Signature(0, SIGNED.signatures[1].signature)])
    with pytest.raises(PeerError, match="client 9 is not a member"):
        unsigned.add([Signature(9, bytes(64))])
    with pytest.raises(PeerError, match="does not belong to terms whose seed comes from a ceremony"):
        unsigned.add([pulse()])
    with pytest.raises(PeerError, match="does not belong to terms whose seed comes from a beacon"):
        Proposal.of(beaconed()).add([SIGNED.commitments[0]])
