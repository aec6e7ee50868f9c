"""A plan field by field: the last value that is accepted, the first that is refused, its bytes and its hashes."""

import hashlib
import re
import struct
from dataclasses import replace
from typing import Any

import pytest

from secagg import Member, Plan, Policy, Schedule, UsageError, WireError
from secagg.agreement.graph import assess, neighbours
from secagg.agreement.plan import PARTS, roster_hash
from secagg.crypto.segments import Segment
from secagg.exposure.schedules import Drawn

SEED = bytes(range(32))
RANDOM = Schedule(name="random", size=3)
REPORT = Policy(mode="report-even-if-exposed")
A, B = Segment(name="a", shape=(3,), clip=2.0), Segment(name="b", shape=(1,), bound=5)


def roster(n: int) -> tuple[Member, ...]:
    return tuple(Member(2 * v, (v + 1).to_bytes(32, "big")) for v in range(n))


def plan(n: int = 6, **changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "training_id": b"\7" * 32,
        "round": 5,
        "roster": roster(n),
        "length": 4,
        "schedule": Schedule(name="random", size=n),
        "training_seed": SEED,
    }
    if not {"clip", "bound", "segments"} & changes.keys():
        fields["clip"] = 1.0
    return Plan(**fields | changes)


ONE = roster(1)[0]
SPARSE: dict[str, Any] = {"degree": 4, "threshold": 3}
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: 1.5}, f"{name}: expected a whole number, got 1.5")
        for name in ("round", "length", "degree", "members", "total_weight", "bound", "threshold", "colluders")
    ),
    ({"clip": "1"}, "clip: expected a finite number, got '1'"),
    *(({name: "text"}, f"{name}: expected bytes, got str") for name in ("training_id", "training_seed", "context")),
    ({"roster": 5}, "roster: expected a collection of Member, got int"),
    ({"segments": (5,)}, "segments, each: expected Segment, got int"),
    ({"schedule": "random"}, "schedule: expected Schedule, got str"),
    ({"policy": None}, "policy: expected Policy, got NoneType"),
    ({"drawn": 5}, "drawn: expected Drawn, got int"),
    ({"weights": 5}, "weights: expected a collection of object, got int"),
    ({"weights": (1.5,) * 6}, "weights, each: expected a whole number, got 1.5"),
    ({"roster": (ONE,)}, "a run needs 2 to 65535 clients, got 1"),
    ({"roster": (ONE,) * 65536}, "a run needs 2 to 65535 clients, got 65536"),
    ({"roster": (ONE,) * 65535}, "roster ids must be strictly ascending, but 0 follows 0; sort the members by id"),
    ({"roster": (ONE, Member(1, ONE.identity))}, "two roster members share one identity key"),
    ({"training_id": bytes(31)}, "training_id must have 32 bytes, got 31"),
    ({"training_seed": bytes(33)}, "training_seed must have 32 bytes, got 33"),
    ({"round": -1}, "round -1 does not fit in 63 bits"),
    ({"round": 2**63}, "round 9223372036854775808 does not fit in 63 bits"),
    ({"length": 0}, "length 0 is not between 1 and 2147483647"),
    ({"length": 2**31}, "length 2147483648 is not between 1 and 2147483647"),
    ({"context": bytes(4097)}, "context has 4097 bytes, at most 4096 are allowed; pass a hash"),
    ({"schedule": Schedule(name="random", size=7)}, "6 clients are too few for one group of 7"),
    (
        {"schedule": Schedule(name="random", size=3, groupings=1025), "policy": REPORT},
        "at most 1024 groupings, got 1025",
    ),
    (
        {"n": 1026, "schedule": Schedule(name="random", size=3, groupings=1024), "policy": REPORT},
        "1026 clients times 1024 groupings exceeds the limit 1048576",
    ),
    *(
        (
            {"schedule": RANDOM, "policy": policy},
            "the policy asks for 4 clients behind every sum, but groups have 3 of 6 clients: no group could be opened",
        )
        for policy in (Policy(anonymity=4), Policy(min_survivors=4))
    ),
    (
        {"policy": replace(REPORT, anonymity=7)},
        "the policy asks for 7 clients behind every sum, but groups have 6 of 6 clients: no group could be opened",
    ),
    (
        {"n": 8, "schedule": Schedule(name="atoms", size=4, atom=2)},
        "atoms of 2 can never hide 3 clients; raise atom to at least 3",
    ),
    *(
        (wrong, "give either clip (for floats) or bound (for integers), or segments with their own")
        for wrong in (
            {"clip": None},
            {"clip": 1.0, "bound": 1},
            {"clip": 1.0, "segments": (A, B)},
            {"bound": 1, "segments": (A, B)},
        )
    ),
    ({"segments": (A,) * 65536}, "at most 65535 segments, got 65536"),
    ({"segments": (A,) * 65535}, "segments: expected a different name for each, got "),
    ({"segments": (A, B), "length": 5}, "length 5, but the segments have 4 values"),
    ({"weights": (1,) * 5}, "5 weights for 6 clients"),
    *(
        ({"weights": (1, 1, 1, 1, 1, wrong)}, "weights must be positive integers below 2^32")
        for wrong in (0, -1, 2**32)
    ),
    (
        {"bound": 1, "weights": (1, 1, 1, 1, 1, 2)},
        "exact integers cannot be weighted; scale them first, or use clip",
    ),
    ({"colluders": -1}, "colluders must be between 0 and 5, got -1"),
    ({"colluders": 6}, "colluders must be between 0 and 5, got 6"),
    ({"degree": 4}, "sparse mode needs an explicit threshold; secagg.agreement.graph.search finds one"),
    *(
        (
            SPARSE | {"schedule": schedule, "policy": REPORT},
            "sparse mode sums one group of all clients; use cells for several groups",
        )
        for schedule in (RANDOM, Schedule(name="random", size=5), Schedule(name="random", size=3, groupings=2))
    ),
    (SPARSE | {"threshold": 1}, "sparse threshold 1 must be between 2 and the degree 4"),
    (SPARSE | {"threshold": 5}, "sparse threshold 5 must be between 2 and the degree 4"),
    (SPARSE | {"degree": 3}, "degree must be even, at least 2 and below n=6, got 3"),
    ({"threshold": 1, "colluders": 0}, "threshold 1 must be between 2 and n=6 (with 0 colluders)"),
    ({"threshold": 7, "colluders": 0}, "threshold 7 must be between 2 and n=6 (with 0 colluders)"),
    (
        {"threshold": 4, "colluders": 2},
        "threshold 4 lets a malicious server open two sets of survivors: 2t > n + colluders needs t >= 5 for n=6, "
        "colluders=2",
    ),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED, ids=[f"{'-'.join(c)}: {s[:30]}" for c, s in REFUSED])
def test_what_may_not_be_built_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(says)}"):
        plan(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2, "policy": Policy(anonymity=2)},
        {"round": 0},
        {"round": 2**63 - 1},
        {"length": 1},
        {"length": 2**31 - 1, "bound": 1},
        {"context": bytes(4096)},
        {"schedule": Schedule(name="random", size=3, groupings=1024), "policy": REPORT},
        {"schedule": RANDOM, "policy": Policy(min_survivors=3)},
        {"schedule": RANDOM, "policy": replace(REPORT, anonymity=6)},
        {"n": 12, "schedule": Schedule(name="atoms", size=6, atom=3)},
        {"n": 12, "schedule": Schedule(name="atoms", size=6, atom=2), "policy": REPORT},
        {"bound": 5, "weights": (2,) * 6},
        {"segments": (A, B), "weights": (1, 1, 1, 1, 1, 2)},
        {"weights": (1, 1, 1, 1, 1, 2**32 - 1)},
        {"colluders": 0, "threshold": 4},
        {"colluders": 5, "threshold": 6},
        {"degree": 4, "threshold": 2},
        {"degree": 4, "threshold": 4},
        {"degree": 2, "threshold": 2},
    ],
)
def test_plans_at_their_limits_are_built_and_come_back(changes: dict[str, Any]) -> None:
    made = plan(**changes)
    assert Plan.from_bytes(made.to_bytes()) == made


def test_a_million_places_fit() -> None:
    made = plan(1024, schedule=Schedule(name="random", size=512, groupings=1024), policy=REPORT)
    assert made.schedule.groupings == 1024


def test_members_at_their_limits() -> None:
    member = Member(2**32 - 1, bytes(32), weight=2**32 - 1)
    assert (member.name, Member(0, bytes(32)).weight) == ("", 1)
    for wrong, says in (
        ({"id": 2**32}, "client id 4294967296 does not fit in 32 bits"),
        ({"id": -1}, "client id -1 does not fit in 32 bits"),
        ({"id": 1.5}, "id: expected a whole number, got 1.5"),
        ({"weight": 0}, "client 3: expected a weight from 1 to 2^32 - 1, got 0"),
        ({"weight": 2**32}, "client 3: expected a weight from 1 to 2^32 - 1, got 4294967296"),
        ({"weight": 1.5}, "weight: expected a whole number, got 1.5"),
        ({"identity": bytes(31)}, "client 3: expected an Ed25519 public key, got 31 bytes"),
        ({"identity": "key"}, "identity: expected bytes, got str"),
        ({"name": 5}, "name: expected str, got int"),
    ):
        fields: dict[str, Any] = {"id": 3, "identity": bytes(32)} | wrong
        with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
            Member(**fields)


def test_the_defaults_are_those_of_the_documents() -> None:
    made = plan()
    names = ("bound", "segments", "weights", "context", "degree", "drawn", "members", "total_weight", "noise")
    assert tuple(getattr(made, name) for name in names) == (None, (), (), b"", 0, None, 0, 0, ())
    assert (made.policy, made.threshold, made.colluders) == (Policy(), 5, 2)
    assert plan(threshold=6).colluders == 2
    assert plan(colluders=0).threshold == 4


# --- bytes and hashes ----------------------------------------------------------------------------------------------


def written(made: Plan) -> dict[str, bytes]:
    """The fields of a plan's bytes, one by one (docs/protocol.md)."""
    whole = struct.Struct("<I").pack
    schedule, policy = made.schedule, made.policy
    return {
        "version": b"\2",
        "training_id": made.training_id,
        "round": struct.pack("<Q", made.round),
        "roster": whole(len(made.roster)) + b"".join(whole(one.id) + one.identity for one in made.roster),
        "threshold": whole(made.t),
        "colluders": whole(made.assumed_colluders),
        "length": whole(made.length),
        "floats": bytes([made.clip is not None]),
        "clip": struct.pack("<d", 0.0 if made.clip is None else made.clip),
        "bound": whole(0 if made.bound is None else made.bound),
        "weights": whole(len(made.weights)) + b"".join(map(whole, made.weights)),
        "schedule": bytes([("random", "fixed", "transversal", "atoms").index(schedule.name)]),
        "size": whole(schedule.size),
        "groupings": struct.pack("<H", schedule.groupings),
        "atom": whole(schedule.atom),
        "training_seed": made.training_seed,
        "min_survivors": whole(policy.min_survivors),
        "anonymity": whole(policy.anonymity),
        "max_leverage": struct.pack("<d", policy.max_leverage),
        "mode": bytes([not policy.enforced]),
        "degree": whole(made.degree),
        "context": whole(len(made.context)) + made.context,
    }


PLANS = [
    plan(),
    plan(clip=None, bound=9, context=b"model", threshold=6, colluders=1),
    plan(weights=(1, 2, 3, 4, 5, 6), policy=replace(REPORT, anonymity=4, min_survivors=3, max_leverage=0.75)),
    plan(12, schedule=Schedule(name="atoms", size=6, atom=3, groupings=2)),
    plan(degree=4, threshold=3),
]


@pytest.mark.parametrize("made", PLANS)
def test_the_bytes_of_a_plan_are_those_of_the_document(made: Plan) -> None:
    fields = written(made)
    data = b"".join(fields.values())
    assert made.to_bytes() == data
    assert made.hash == hashlib.sha256(b"secagg/v2/plan\n" + data).digest()
    members = hashlib.sha256(b"secagg/v2/roster\n" + fields["roster"]).digest()
    assert made.roster_hash == roster_hash(made.roster) == members
    named = {part: b"".join(fields[name] for name in names) for part, names in PARTS.items()}
    assert made.parts == {
        part: hashlib.sha256(b"secagg/v2/plan-part\n" + part.encode() + b"\n" + values).digest()
        for part, values in named.items()
    }
    assert Plan.from_bytes(data) == made
    assert sorted(name for names in PARTS.values() for name in names) == sorted(fields)


def test_segments_follow_the_other_fields() -> None:
    made = plan(segments=(A, B))
    bare = b"".join(written(made).values())
    data = made.to_bytes()
    assert data.startswith(bare)
    more = data[len(bare) :]
    assert more.startswith(struct.pack("<II", 2, 1) + b"a" + struct.pack("<II", 1, 3) + b"\1" + struct.pack("<d", 2.0))
    assert Plan.from_bytes(data) == made
    assert plan(segments=[A, B]) == made
    with pytest.raises(WireError, match=r"^1 extra bytes after the message$"):
        Plan.from_bytes(data + b"\0")
    fields = written(made)
    vector = b"".join(fields[name] for name in PARTS["vector"])
    assert made.parts["vector"] == hashlib.sha256(b"secagg/v2/plan-part\nvector\n" + vector + more).digest()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("version", b"\1", "plan version 1, this is version 2"),
        ("schedule", b"\4", "unknown schedule (4), mode (0) or encoding (1) in a plan"),
        ("mode", b"\2", "unknown schedule (0), mode (2) or encoding (1) in a plan"),
        ("floats", b"\2", "unknown schedule (0), mode (0) or encoding (2) in a plan"),
        ("bound", b"\1\0\0\0", "plan bytes are not canonical"),
    ],
)
def test_bytes_that_are_no_plan_are_refused(field: str, value: bytes, says: str) -> None:
    fields = written(plan()) | {field: value}
    with pytest.raises(WireError, match=f"^{re.escape(says)}$"):
        Plan.from_bytes(b"".join(fields.values()))


def test_a_difference_is_named_by_the_first_part_that_differs() -> None:
    mine = plan()
    for changes, part in (
        ({"training_id": bytes(32), "context": b"x"}, "agreement"),
        ({"round": 6}, "round"),
        ({"roster": roster(7)[1:]}, "roster"),
        ({"threshold": 6}, "thresholds"),
        ({"length": 5, "context": b"x"}, "vector"),
        ({"weights": (1,) * 6}, "weights"),
        ({"schedule": RANDOM}, "schedule"),
        ({"training_seed": bytes(32)}, "seed"),
        ({"policy": REPORT}, "policy"),
        ({"context": b"x"}, "context"),
    ):
        assert mine.difference(list(plan(**changes).parts.values())) == part
    narrow, wide = (plan(degree=degree, threshold=2) for degree in (2, 4))
    assert narrow.difference(list(wide.parts.values())) == "graph"
    assert mine.difference(list(mine.parts.values())) == "plan"
    assert mine.difference([]) == "plan"
    with pytest.raises(UsageError, match=r"^parts: expected a collection of object, got int$"):
        mine.difference(5)  # type: ignore[arg-type]


# --- what follows --------------------------------------------------------------------------------------------------


def test_places_in_the_roster_are_counted_from_one() -> None:
    made = plan(3)
    assert made.ids == (0, 2, 4)
    assert made.index == {0: 1, 2: 2, 4: 3}
    assert made.identities == {one.id: one.identity for one in made.roster}


def test_a_plan_draws_its_groups_unless_they_are_given() -> None:
    schedule = Schedule(name="atoms", size=6, atom=3, groupings=2)
    made = plan(14, schedule=schedule)
    where = made.ids, SEED, 5
    assert made.groupings == schedule.draw(*where)
    assert made.atoms == schedule.atoms(*where)
    grid = Schedule(name="transversal", size=3, groupings=2)
    assert plan(9, schedule=grid)._drawn.columns == grid.columns(plan(9).ids, SEED, 5)
    given = Drawn((((0, 2, 4), (6, 8, 10)),))
    drawn = plan(schedule=RANDOM, drawn=given)
    assert (drawn.groupings, drawn.atoms) == (given.groupings, ())
    assert plan(7, schedule=RANDOM, drawn=given).groups_of == {
        **dict.fromkeys((0, 2, 4), ((0, 0),)),
        **dict.fromkeys((6, 8, 10), ((0, 1),)),
        12: (),
    }
    twice = Drawn((((0, 2, 4), (6, 8, 10)), ((0, 6, 8), (2, 4, 10))))
    assert plan(schedule=replace(RANDOM, groupings=2), drawn=twice).groups_of[2] == ((0, 0), (1, 1))


def test_a_group_is_named_by_its_grouping_and_its_place() -> None:
    made = plan(schedule=RANDOM, drawn=Drawn((((0, 2, 4), (6, 8, 10)),)))
    assert made.group((0, 1)) == (6, 8, 10)
    for wrong in ((0, 2), (1, 0), (0, -1), (0,), (0, 0, 0), 5, "ab"):
        with pytest.raises(
            UsageError, match=re.escape(f"group: expected (grouping, group) of this plan, got {wrong!r}")
        ):
            made.group(wrong)  # type: ignore[arg-type]


def test_peers_are_everybody_or_the_neighbourhood() -> None:
    made, sparse = plan(), plan(degree=4, threshold=3)
    assert made.peers(2) == made.ids
    near = neighbours(sparse.ids, 4, SEED + (5).to_bytes(8, "little"))
    assert {v: sparse.peers(v) for v in sparse.ids} == {v: tuple(sorted((v, *near[v]))) for v in sparse.ids}
    assert (made.holders, sparse.holders) == (6, 5)
    assert (made.semi_honest_only, sparse.semi_honest_only) == (False, True)
    with pytest.raises(UsageError, match=r"^client: client 1 is not on the roster$"):
        made.peers(1)


def test_the_risk_of_a_sparse_graph_is_that_of_its_colluders_and_dropouts() -> None:
    sparse = plan(30, degree=14, threshold=8, colluders=2)
    for dropouts in (0, 1, 20, 26):
        found = assess(30, degree=14, threshold=8, colluders=2 / 30, dropouts=dropouts / 30)
        assert sparse.sparse_risk(dropouts) == 2.0**found.privacy
    assert sparse.sparse_risk(27) == 1.0  # one honest client is left
    with pytest.raises(UsageError, match=r"^dropouts: expected a whole number of at least 0, got -1$"):
        sparse.sparse_risk(-1)


def test_weights_are_relative_to_the_mean() -> None:
    made = plan(weights=(1, 2, 3, 4, 5, 6))
    assert made.weight_of == dict(zip(made.ids, (1, 2, 3, 4, 5, 6), strict=True))
    assert [made.relative_weight(v) for v in made.ids] == [w * 6 / 21 for w in range(1, 7)]
    cell = plan(weights=(1, 2, 3, 4, 5, 6), members=12, total_weight=48)
    assert [cell.relative_weight(v) for v in made.ids] == [w / 4 for w in range(1, 7)]
    assert plan().relative_weight(2) == 1.0
    assert plan().weight_of == dict.fromkeys(made.ids, 1)
    with pytest.raises(UsageError, match=r"^client: client 1 is not on the roster$"):
        plan().relative_weight(1)


def test_clips_and_bounds_are_those_of_the_segments() -> None:
    assert (plan().clips, plan().bounds) == ([1.0], [])
    assert (plan(bound=7).clips, plan(bound=7).bounds) == ([], [7])
    both = plan(segments=(A, B))
    assert (both.clips, both.bounds) == ([2.0], [5])
    assert both.encoding.clients == 6
    assert plan(schedule=RANDOM).encoding.clients == 3
    assert plan().encoding.segments == (Segment(shape=(4,), clip=1.0),)


def test_only_whole_atoms_are_summed() -> None:
    atoms = Drawn((((0, 2, 4, 6, 8, 10),),), ((0, 2, 4), (6, 8, 10)))
    made = plan(schedule=Schedule(name="atoms", size=6, atom=3), drawn=atoms)
    assert made.in_broken_atoms((0, 2, 4, 6, 8)) == (6, 8)
    assert made.summed((8, 6, 4, 2, 0)) == (0, 2, 4)
    reported = replace(made, policy=REPORT)
    assert reported.in_broken_atoms((0, 2, 4, 6, 8)) == ()
    assert reported.summed((8, 6, 4, 2, 0)) == (0, 2, 4, 6, 8)
    for asked in (made.in_broken_atoms, made.summed):
        with pytest.raises(UsageError, match=r"^survivors: client 1 is not on the roster$"):
            asked((0, 1))
