"""The file of an agreement, exactly: its lines, its defaults, the limits of its numbers, and each refusal of a form."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from secagg import Member, Policy, Schedule, UsageError
from secagg.agreement import Approval, Commitment, Kept, NamedPulse, Proposal, Reveal, Signature, Terms
from secagg.agreement.file import parse, read, read_document, read_floors, read_parts, write, write_part
from secagg.agreement.floors import Floors
from secagg.agreement.keeping import together
from secagg.agreement.table import Table, show
from secagg.crypto import Segment
from secagg.crypto.pulse import Pulse

KEYS = [bytes([place]) * 32 for place in range(1, 10)]
MEMBERS = tuple(Member(place, KEYS[place]) for place in range(4))
WHOLE: dict[str, Any] = {
    "name": "x",
    "members": MEMBERS,
    "schedule": Schedule(name="fixed", size=2),
    "last_round": 3,
    "segments": (Segment(shape=(5,), bound=9),),
    "policy": Policy(anonymity=2),
}


def refused(problem: str) -> Any:
    return pytest.raises(UsageError, match=f"^{re.escape(problem)}$")


def members_lines(count: int = 4) -> str:
    return "".join(f'\n[[members]]\nid = {place}\nidentity = "{KEYS[place].hex()}"\n' for place in range(count))


def test_only_what_differs_from_a_default_is_written() -> None:
    text = write(Proposal(terms=Terms(**WHOLE)))
    head = '# An agreement of secagg (docs/agreement.md). Everything in this file is public.\nversion = 2\nname = "x"\n'
    rounds = '\n[rounds]\nfirst = 0\nlast = 3\n\n[groups]\nkind = "whole"\nschedule = "fixed"\nsize = 2\n'
    policy = write_policy(Policy(anonymity=2))
    assert text == head + rounds + policy + "\n[vector]\nlength = 5\nbound = 9\n" + members_lines() + SEED


SEED = '\n[seed]\nfrom = "ceremony"\n'


def write_policy(policy: Policy) -> str:
    lines = [f"anonymity = {policy.anonymity}", f"min_survivors = {policy.min_survivors}"]
    lines += [
        f"max_leverage = {float(policy.max_leverage)!r}",
        f'memory = "{policy.memory}"',
        f'mode = "{policy.mode}"',
    ]
    return "\n[policy]\n" + "\n".join(lines) + "\n"


def test_everything_else_is_written_and_read_again() -> None:
    members = tuple(Member(3 * place, KEYS[place], f"m {place}", weight=place + 1) for place in range(6))
    policy = Policy(anonymity=2, min_survivors=2, max_leverage=1, memory="round")
    terms = Terms(
        name='a "b"',
        members=members,
        schedule=Schedule(name="random", size=2, groupings=2),
        first_round=4,
        last_round=9,
        segments=(Segment(name="w", shape=(2, 3), clip=2), Segment(name="b", shape=(1,), clip=0.5)),
        sample=4,
        least_groups=2,
        policy=policy,
        predecessors=(bytes(32), KEYS[0]),
    )
    text = write(Proposal(terms=terms))
    lines = ["[groups]", 'kind = "whole"', 'schedule = "random"', "size = 2", "groupings = 2", "sample = 4"]
    assert "\n".join([*lines, "least_groups = 2", ""]) + write_policy(policy) in text
    assert (
        f'name = "a \\"b\\""\npredecessors = [\n    "{"00" * 32}",\n    "{"01" * 32}",\n]\n\n[rounds]\nfirst = 4'
        in text
    )
    assert (
        '[[segments]]\nname = "w"\nshape = [2, 3]\nclip = 2.0\n\n[[segments]]\nname = "b"\nlength = 1\nclip = 0.5\n'
        in text
    )
    assert f'[[members]]\nid = 3\nname = "m 1"\nidentity = "{KEYS[1].hex()}"\nweight = 2\n' in text
    assert (
        f'[[members]]\nid = 0\nname = "m 0"\nidentity = "{KEYS[0].hex()}"\n\n' in text
    )  # a weight of 1 is the default
    assert read(text).terms == terms


def test_survivors_atoms_roll_calls_and_kept_groups_are_written() -> None:
    survivors = WHOLE | {"groups": "survivors", "colluders": 0, "threshold": 3, "cell": 2, "last_round": 0}
    lines = "size = 2\ncolluders = 0\nthreshold = 3\ncell = 2\n"
    with pytest.raises(UsageError):
        Terms(**survivors)  # a threshold above a cell
    terms = Terms(**survivors | {"threshold": 2})
    assert lines.replace("3", "2") in write(Proposal(terms=terms))
    assert read(write(Proposal(terms=terms))).terms == terms
    atoms = Terms(**WHOLE | {"schedule": Schedule(name="atoms", size=4, atom=2)})
    assert 'schedule = "atoms"\nsize = 4\natom = 2\n' in write(Proposal(terms=atoms))
    assert read(write(Proposal(terms=atoms))).terms == atoms
    called = Terms(
        **WHOLE | {"schedule": Schedule(name="fixed", size=4), "roll_call": True, "policy": Policy(memory="round")}
    )
    assert "size = 4\nroll_call = true\n\n[policy]" in write(Proposal(terms=called))
    assert read(write(Proposal(terms=called))).terms == called
    (gone,) = [unit for unit in together(None, WHOLE["schedule"], (0, 1, 2, 3), bytes(32)) if 3 in unit]
    left = tuple(member for member in MEMBERS if member.id not in gone)
    kept = Terms(**WHOLE | {"members": left, "predecessors": (KEYS[0],), "keep": Kept(bytes(32), tuple(sorted(gone)))})
    text = write(Proposal(terms=kept))
    assert f'size = 2\n\n[groups.keep]\nseed = "{"00" * 32}"\ndropped = {sorted(gone)}\n\n[policy]' in text
    assert read(text).terms == kept
    backwards = text.replace(f"dropped = {sorted(gone)}", f"dropped = {sorted(gone, reverse=True)}")
    assert read(backwards).terms == kept


def test_steps_are_written_in_the_order_of_ids() -> None:
    first, second = Commitment(0, KEYS[0], bytes(64)), Commitment(2, KEYS[1], b"\1" * 64)
    shown = Reveal(1, KEYS[2], bytes(64))
    proposal = Proposal(
        terms=Terms(**WHOLE),
        commitments={2: second, 0: first},
        reveals={1: shown},
        signatures={3: Signature(3, b"\3" * 64), 1: Signature(1, b"\1" * 64)},
    )
    ending = (
        SEED
        + f'\n[seed.commitments]\n0 = {{ commitment = "{KEYS[0].hex()}", signature = "{"00" * 64}" }}\n'
        + f'2 = {{ commitment = "{KEYS[1].hex()}", signature = "{"01" * 64}" }}\n'
        + f'\n[seed.reveals]\n1 = {{ contribution = "{KEYS[2].hex()}", signature = "{"00" * 64}" }}\n'
        + f'\n[signatures]\n1 = "{"01" * 64}"\n3 = "{"03" * 64}"\n'
    )
    text = write(proposal)
    assert text.endswith(members_lines() + ending)
    assert read(text) == proposal
    assert read_parts(text, Proposal(terms=Terms(**WHOLE))) == (first, second, shown, *proposal.in_order("signatures"))


def test_a_pulse_and_its_approvals_are_written() -> None:
    minute = datetime(2027, 1, 31, 12, 7, tzinfo=UTC)
    beacon = NamedPulse(chain=2, time=int(minute.timestamp() * 1000), key=KEYS[0])
    pulse = Pulse(b"\1\2", b"\3", b"\4")
    proposal = Proposal(terms=Terms(**WHOLE, beacon=beacon), approvals={1: Approval(1, bytes(64))}, pulse=pulse)
    text = write(proposal)
    assert text.endswith(
        f'\n[seed]\nfrom = "beacon"\nchain = 2\ntime = 2027-01-31T12:07:00Z\nkey = "{KEYS[0].hex()}"\n'
        f'\n[seed.approvals]\n1 = {{ signature = "{"00" * 64}" }}\n'
        '\n[seed.pulse]\nmessage = "0102"\nsignature = "03"\nkey = "04"\n'
    )
    assert read(text) == proposal
    assert read_parts(text, Proposal(terms=proposal.terms)) == (Approval(1, bytes(64)), pulse)
    for name in ("chain", "time", "key", "pulse", "approvals"):
        value = {"chain": 1, "time": minute, "key": "00", "pulse": {}, "approvals": {}}[name]
        with refused(f"seed.{name}: only for from = 'beacon'"):
            read_document(document(seed={name: value}))
    for name in ("commitments", "reveals"):
        with refused(f"seed.{name}: only for from = 'ceremony'"):
            read_document(document(seed={"from": "beacon", name: {}}))
    zone = {"from": "beacon", "chain": 2, "key": KEYS[0].hex()}
    assert read_document(document(seed=zone | {"time": minute})).terms.beacon == beacon
    with refused(f"seed.time: expected a whole minute, got {minute + timedelta(microseconds=500)}"):
        read_document(document(seed=zone | {"time": minute + timedelta(microseconds=500)}))
    told = "seed.time: expected a time with its zone, such as 2027-01-31T12:00:00Z, got "
    for wrong in (minute.replace(tzinfo=None), 5, None):
        with refused(told + show(wrong)):
            read_document(document(seed=zone | {"time": wrong}))


def test_a_part_is_a_small_file() -> None:
    proposal = Proposal(terms=Terms(**WHOLE))
    commitment = Commitment(2, KEYS[0], bytes(64))
    assert write_part(proposal, commitment) == (
        f'version = 2\npart = "commitment"\nagreement = "x"\nterms = "{proposal.terms.hash.hex()}"\nmember = 2\n'
        f'commitment = "{KEYS[0].hex()}"\nsignature = "{"00" * 64}"\n'
    )
    for part in (commitment, Reveal(1, KEYS[1], bytes(64)), Approval(0, bytes(64)), Signature(3, bytes(64))):
        assert read_parts(write_part(proposal, part), proposal) == (part,)
    other = Proposal(terms=Terms(**WHOLE | {"name": "y"}))
    told = f"terms: expected {other.terms.hash.hex()[:16]}..., got {proposal.terms.hash.hex()[:16]}..."
    rest = ": this was made for other terms; compare the two files"
    with refused(f"{told} (of 'x'){rest}"):
        read_parts(write_part(proposal, commitment), other)
    with refused(told + rest):
        read_parts(write_part(proposal, commitment).replace('agreement = "x"', 'agreement = "y"'), other)
    with refused(told + rest):
        read_parts(write(proposal), other)


# --- reading -------------------------------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    """A file as it is parsed; a change to None takes a key out."""
    whole: dict[str, Any] = {
        "version": 2,
        "name": "x",
        "rounds": {"last": 3},
        "groups": {"size": 2},
        "policy": {"anonymity": 2},
        "vector": {"length": 5, "bound": 9},
        "members": [{"identity": key.hex()} for key in KEYS[:4]],
    }
    return {key: value for key, value in (whole | changes).items() if value is not None}


def test_a_file_without_defaults_has_them() -> None:
    assert read_document(document()) == Proposal(terms=Terms(**WHOLE))
    assert read_document(document(policy=None, groups={"size": 4})).terms.policy == Policy()
    full = {"anonymity": 2, "min_survivors": 2, "max_leverage": 1, "memory": "round", "mode": "report-even-if-exposed"}
    found = read_document(document(policy=full)).terms.policy
    assert found == Policy(
        anonymity=2, min_survivors=2, max_leverage=1.0, memory="round", mode="report-even-if-exposed"
    )
    assert type(found.max_leverage) is float


def test_members_stand_in_any_order_with_ids_and_weights_of_32_bits() -> None:
    rows = [{"id": 9 - place, "identity": KEYS[place].hex()} for place in range(4)]
    rows[0] |= {"weight": 2**32 - 1, "name": "n"}
    rows[1] |= {"id": 2**32 - 1}
    found = read_document(document(members=rows, vector={"length": 1, "clip": 1})).terms.members
    assert found == (
        Member(6, KEYS[3]),
        Member(7, KEYS[2]),
        Member(9, KEYS[0], "n", weight=2**32 - 1),
        Member(2**32 - 1, KEYS[1]),
    )
    for key in ("id", "weight"):
        with refused(f"members[1].{key}: expected 0 to {2**32 - 1}, got {2**32}"):
            read_document(document(members=[*rows[:1], rows[1] | {key: 2**32}, *rows[2:]]))
    del rows[2]["id"]
    with refused("members: expected an id for every member or for none, got 3 of 4"):
        read_document(document(members=rows))
    for wrong in ([], {}, 3, None):
        with refused(f"members: expected one table [[members]] for each, got {show(wrong)}"):
            read_document(document(members=wrong))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"groups": {}}, "groups.size: expected the number of members in a group, but the key is missing"),
        ({"groups": None}, "groups.size: expected the number of members in a group, but the key is missing"),
        ({"rounds": None}, "rounds.last: expected a whole number, but the key is missing"),
        (
            {"segments": [{"name": "a", "length": 1, "clip": 1}]},
            "vector: expected either one table [vector] or a table [[segments]] for each part",
        ),
        ({"vector": None}, "vector: expected either one table [vector] or a table [[segments]] for each part"),
        ({"vector": None, "segments": []}, "segments: expected a table [[segments]] for each part, got []"),
        ({"vector": None, "segments": 3}, "segments: expected a table [[segments]] for each part, got 3"),
        ({"vector": {"clip": 1}}, "vector: expected either length or shape"),
        ({"vector": {"length": 3, "shape": [3], "clip": 1}}, "vector: expected either length or shape"),
        ({"vector": None, "segments": [{"name": "a"}]}, "segments[0]: expected either length or shape"),
        ({"vector": {"shape": 3, "clip": 1}}, "vector.shape: expected a list of at most 32 whole numbers, got 3"),
        (
            {"vector": {"shape": [True], "clip": 1}},
            "vector.shape: expected a list of at most 32 whole numbers, got [True]",
        ),
        (
            {"vector": {"length": True, "clip": 1}},
            "vector.shape: expected a list of at most 32 whole numbers, got [True]",
        ),
        (
            {"vector": {"shape": [1] * 33, "clip": 1}},
            f"vector.shape: expected a list of at most 32 whole numbers, got {show([1] * 33)}",
        ),
        ({"vector": {"length": 3, "bound": 2**32}}, f"vector.bound: expected 0 to {2**32 - 1}, got {2**32}"),
        (
            {"vector": {"length": 3, "clip": 1, "name": "a"}},
            "vector.name: unknown key; expected one of bound, clip, length, shape",
        ),
        ({"predecessors": "ab"}, "predecessors: expected a list of fingerprints, got 'ab'"),
        ({"predecessors": ["00"]}, "predecessors[0]: expected 64 lower-case hexadecimal digits, got '00'"),
        (
            {"groups": {"size": 2, "keep": {"seed": "00" * 32, "dropped": 3}}},
            "groups.keep.dropped: expected a list of the members that left, by id, got 3",
        ),
        (
            {"groups": {"size": 2, "keep": {"seed": "00" * 32, "dropped": [True]}}},
            "groups.keep.dropped: expected a list of the members that left, by id, got [True]",
        ),
        (
            {"groups": {"size": 2, "keep": {"seed": "00", "dropped": []}}},
            "groups.keep.seed: expected 64 lower-case hexadecimal digits, got '00'",
        ),
        ({"groups": {"size": 2, "roll_call": 1}}, "groups.roll_call: expected true or false, got 1"),
        ({"signatures": 3}, "signatures: expected a table [signatures] with a line for each member, got 3"),
        (
            {"seed": {"reveals": []}},
            "seed.reveals: expected a table [seed.reveals] with a line for each member, got []",
        ),
        ({"signatures": {"²": "00"}}, "signatures.'²': expected the id of a member, got '²'"),
        ({"signatures": {"01": "00"}}, "signatures.'01': expected the id of a member, got '01'"),
        ({"signatures": {"-1": "00"}}, "signatures.'-1': expected the id of a member, got '-1'"),
        ({"signatures": {"1" * 11: "00"}}, f"signatures.'{'1' * 11}': expected the id of a member, got '{'1' * 11}'"),
        (
            {"signatures": {"1" * 10: "00"}},
            f"signatures.{'1' * 10}.signature: expected 128 lower-case hexadecimal digits, got '00'",
        ),
        (
            {"seed": {"from": "beacon", "pulse": 3}},
            "seed.time: expected a time with its zone, such as 2027-01-31T12:00:00Z, got None",
        ),
    ],
)
def test_a_wrong_form_is_refused_in_these_words(changes: dict[str, Any], problem: str) -> None:
    with refused(problem):
        read_document(document(**changes))


def test_with_statistics_a_file_has_no_vector() -> None:
    asked = {"most_rows": 5, "n": {"kind": "count"}}
    assert read_document(document(vector=None, statistics=asked)).terms.length == 1
    for other in ({"vector": {"length": 1, "bound": 9}}, {"segments": [{"name": "a", "length": 1, "bound": 9}]}):
        with pytest.raises(UsageError, match=r"^segments: with statistics, leave out \[vector\] and \[\[segments\]\]"):
            read_document(document(**({"vector": None} | other), statistics=asked))


def test_a_shape_has_at_most_32_sides() -> None:
    sides = [1] * 31 + [5]
    found = read_document(document(vector={"shape": sides, "bound": 9})).terms.segments
    assert found == (Segment(shape=tuple(sides), bound=9),)


def test_a_file_has_at_most_so_many_characters() -> None:
    assert parse("version = 2" + " " * 5) == {"version": 2}

    class Long(str):
        __slots__ = ()

        def __len__(self) -> int:
            return length

    length = 2**27
    assert parse(Long("version = 2")) == {"version": 2}
    length += 1
    with refused(f"expected a file of at most {2**27} characters, got {2**27 + 1}"):
        parse(Long("version = 2"))


@pytest.mark.parametrize(
    ("text", "came"), [("", "no version"), ("version = 2.0", "version 2.0"), ("version = 3", "version 3")]
)
def test_a_file_of_another_version_is_refused(text: str, came: str) -> None:
    with refused(f"expected a file of version 2, got {came}; agree anew (docs/agreement.md)"):
        parse(text)


@pytest.mark.parametrize("text", ["x", "x = " + "[" * 5000, "x = " + "9" * 5000])
def test_what_is_no_toml_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^expected an agreement in TOML: "):
        parse(text)
    with pytest.raises(UsageError, match=r"^expected floors in TOML: "):
        read_floors(text)


def test_floors_are_the_fields_of_the_class() -> None:
    assert read_floors("") == Floors()
    assert read_floors("size = 5\n") == Floors(size=5)
    with pytest.raises(UsageError, match=r"^sizes: unknown key; did you mean 'size'\?$"):
        read_floors("sizes = 5\n")


# --- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda t: t.text("n"), "t.n: expected text, got 3"),
        (lambda t: t.text("none"), "t.none: expected text, but the key is missing"),
        (lambda t: t.whole("s"), "t.s: expected a whole number, got 'ab'"),
        (lambda t: t.whole("b"), "t.b: expected a whole number, got True"),
        (lambda t: t.whole("big"), f"t.big: expected 0 to {2**63 - 1}, got {2**63}"),
        (lambda t: t.number("b"), "t.b: expected a number, got True"),
        (lambda t: t.number("s"), "t.s: expected a number, got 'ab'"),
        (lambda t: t.flag("n", True), "t.n: expected true or false, got 3"),
        (lambda t: t.choice("n", ("ab", "cd")), "t.n: expected one of ab, cd, got 3"),
        (lambda t: t.choice("s", ("abc", "cd")), "t.s: expected one of abc, cd, got 'ab'; did you mean 'abc'?"),
        (lambda t: t.hex("s", 2), "t.s: expected 4 lower-case hexadecimal digits, got 'ab'"),
        (lambda t: t.hex("upper", 1), "t.upper: expected 2 lower-case hexadecimal digits, got 'AB'"),
        (lambda t: t.hex("blank", 2), "t.blank: expected 4 lower-case hexadecimal digits, got 'ab cd'"),
        (lambda t: t.hex("wrong", 1), "t.wrong: expected 2 lower-case hexadecimal digits, got 'xy'"),
        (lambda t: t.hex("s", most=0), "t.s: expected lower-case hexadecimal digits, got 'ab'"),
        (lambda t: t.hex("empty", most=5), "t.empty: expected lower-case hexadecimal digits, got ''"),
    ],
)
def test_a_key_of_a_table_has_its_type(call: Any, problem: str) -> None:
    values = {"n": 3, "s": "ab", "b": True, "big": 2**63, "upper": "AB", "blank": "ab cd", "wrong": "xy", "empty": ""}
    table = Table(values, "t", (*values, "none"))
    with refused(problem):
        call(table)


def test_a_key_of_a_table_has_its_value_or_the_default() -> None:
    values = {"n": 3, "s": "ab", "b": False, "big": 2**63 - 1, "x": 1.5}
    table = Table(values, "t", (*values, "none"))
    assert (table.text("s"), table.text("none", "d"), table.whole("big"), table.whole("none", 7)) == (
        "ab",
        "d",
        2**63 - 1,
        7,
    )
    assert (table.flag("b", True), table.flag("none", True), table.number("n"), table.number("x")) == (
        False,
        True,
        3.0,
        1.5,
    )
    assert type(table.number("n")) is float
    assert (table.choice("s", ("ab",)), table.choice("none", ("ab",), "ab")) == ("ab", "ab")
    assert (table.hex("s", 1), table.hex("s", most=1), table.raw("none"), table.raw("none", 5)) == (
        b"\xab",
        b"\xab",
        None,
        5,
    )
    assert "none" not in table
    assert "s" in table
    with refused("t.y: unknown key; expected one of a, n"):
        Table({"y": 3}, "t", ("n", "a"))
    with refused("y: unknown key; expected one of n"):
        Table({"y": 3}, "", ("n",))
    with refused("t: expected a table [t], got 3"):
        Table(3, "t", ())


def test_names_are_written_as_people_read_them() -> None:
    text = write(Proposal(terms=Terms(**WHOLE | {"name": "Zürich 東京"})))
    assert 'name = "Zürich 東京"\n' in text
    assert read(text).terms.name == "Zürich 東京"


def test_what_came_is_shown_in_sixty_characters_at_most() -> None:
    assert show("a" * 58) == repr("a" * 58)
    assert show("a" * 59) == "'" + "a" * 56 + "..."
