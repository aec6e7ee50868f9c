"""A malicious server against real Clients: each lie it can tell is refused, and the refusal is final.

One test per check of `client.py`, so that each fails when its check is taken out (`mutations.py` does
that), and for the checks that carry the privacy, an attack that succeeds when the check is blinded.
"""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from secagg import (
    AlreadyUsed,
    Client,
    MemoryJournal,
    PeerError,
    PlanRefused,
    Policy,
    Schedule,
    Stage,
    TooFewSurvivors,
    UsageError,
    labels,
    reference,
)
from secagg.crypto import Segment, shamir
from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey
from secagg.crypto.prg import add_masks, pairwise_sign
from secagg.protocol import dealing, transcript
from secagg.protocol.client_state import State
from secagg.protocol.dealing import box_bytes
from secagg.protocol.messages import (
    Consistency,
    Dealing,
    KeyAdvert,
    MaskedInput,
    Survivor,
    Survivors,
    ToClient,
    Unmasking,
)
from tests.secagg.cluster import Cluster, both_kinds, identity, make_inputs, make_plan, signed
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import Puppet, World, survivor

FIELD = 2**255 - 19


def refuses(puppet: Puppet, message: ToClient, error: type[Exception], match: str) -> Any:
    """The client refuses with this error, is FAILED permanently, and sends nothing."""
    said = len(puppet.said)
    with pytest.raises(error, match=match) as caught:
        puppet.tell(message)
    assert len(puppet.said) == said
    assert puppet.client.state is State.FAILED
    return caught.value


def test_hello_opens_a_run_once() -> None:
    puppet = World(make_plan(4)).puppet(0)
    puppet.hello()
    with pytest.raises(UsageError, match="once"):
        puppet.hello()
    assert puppet.client.state is State.FAILED


def test_a_client_with_another_identity_is_not_on_the_roster() -> None:
    world = World(make_plan(4))
    with pytest.raises(UsageError, match=r"not in this agreement|not on the roster"):
        Client(0, identity(1), world.agreed, world.plan.round, MemoryJournal())
    with pytest.raises(UsageError, match=r"not in this agreement|not on the roster"):
        Client(9, identity(9), world.agreed, world.plan.round, MemoryJournal())


def advertised(n: int = 5, **changes: object) -> tuple[World, dict[int, Puppet], dict[int, KeyAdvert]]:
    world = World(make_plan(n, **changes))
    puppets = world.run_to(Stage.KEYS)
    return world, puppets, {v: p.find(KeyAdvert) for v, p in puppets.items()}


@pytest.mark.parametrize("order", ["twice", "unsorted", "without me", "stranger"])
def test_the_key_list_names_me_and_my_peers_once_each_in_order(order: str) -> None:
    world, puppets, adverts = advertised()
    lists = {
        "twice": [*adverts.values(), adverts[4]],
        "unsorted": [adverts[v] for v in (1, 0, 2, 3, 4)],
        "without me": [adverts[v] for v in (1, 2, 3, 4)],
        "stranger": [*adverts.values(), replace(adverts[4], sender=77)],
    }
    bad = replace(world.key_list([]), adverts=tuple(lists[order]))
    refuses(puppets[0], bad, PeerError, "once each, in order")


def test_fewer_than_t_keys_are_refused_and_t_are_enough() -> None:
    world, puppets, adverts = advertised()
    t = world.plan.t
    few = world.key_list(adverts[v] for v in range(t - 1))
    refuses(puppets[0], few, TooFewSurvivors, "threshold")
    assert isinstance(puppets[1].tell(world.key_list(adverts[v] for v in range(t))), Dealing)


@pytest.mark.parametrize("field", ["channel", "mask"])
def test_a_key_under_my_id_that_i_did_not_send_is_refused(field: str) -> None:
    world, puppets, adverts = advertised()
    other = AgreementKey.from_private(bytes(31) + b"\x01").public
    forged = resigned(world, replace(adverts[0], **{field: other}))
    refuses(puppets[0], world.key_list({**adverts, 0: forged}.values()), PeerError, "that I did not send")


def resigned(world: World, advert: KeyAdvert) -> KeyAdvert:
    """A colluder's advert: whatever its keys, its own signature is right."""
    plan = world.plan
    statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, advert)
    return replace(advert, signature=signed(advert.sender, statement))


@pytest.mark.parametrize("field", ["channel", "mask", "signature"])
@pytest.mark.parametrize("victim", [1, 2, 3, 4])
def test_a_key_swapped_in_flight_is_refused_and_its_owner_named(field: str, victim: int) -> None:
    world, puppets, adverts = advertised()
    donor = adverts[victim % 4 + 1]
    swapped = replace(adverts[victim], **{field: getattr(donor, field)})
    bad = world.key_list({**adverts, victim: swapped}.values())
    error = refuses(puppets[0], bad, PeerError, f"client {victim}: wrong signature")
    assert error.culprit == victim


def test_a_sybil_key_signed_by_another_client_is_refused() -> None:
    world, puppets, adverts = advertised()
    sybil = AgreementKey.from_private(Drbg(b"sybil")(32)).public
    plan, made = world.plan, replace(adverts[2], mask=sybil)
    statement = transcript.key_statement(plan.training_id, plan.round, plan.roster_hash, made)
    made = replace(made, signature=signed(99, statement))
    error = refuses(puppets[0], world.key_list({**adverts, 2: made}.values()), PeerError, "wrong signature")
    assert error.culprit == 2


@pytest.mark.parametrize("change", [{"agreement": bytes(32)}, {"round": 4}, {"roster": make_plan(6).roster_hash}])
def test_keys_signed_for_another_round_agreement_or_roster_are_refused(change: dict[str, Any]) -> None:
    world, puppets, adverts = advertised()
    plan = world.plan
    where = {"agreement": plan.training_id, "round": plan.round, "roster": plan.roster_hash}
    right, elsewhere = (
        signed(3, transcript.key_statement(*changed.values(), adverts[3])) for changed in (where, where | change)
    )
    assert right == adverts[3].signature
    bad = world.key_list({**adverts, 3: replace(adverts[3], signature=elsewhere)}.values())
    refuses(puppets[0], bad, PeerError, "client 3: wrong signature")


LOW_ORDER = sorted(LOW_ORDER_POINTS)
NON_CANONICAL = [(FIELD + k).to_bytes(32, "little") for k in range(19)] + [
    bytes(point[:31]) + bytes([point[31] | 0x80]) for point in (*LOW_ORDER, b"\x09" + bytes(31))
]


@pytest.mark.parametrize("field", ["channel", "mask"])
@pytest.mark.parametrize(
    ("key", "why"), [(key, "low-order") for key in LOW_ORDER] + [(key, "non-canonical") for key in NON_CANONICAL]
)
def test_every_low_order_or_non_canonical_key_is_refused_although_its_owner_signed_it(
    key: bytes, why: str, field: str
) -> None:
    world, puppets, adverts = advertised()
    bad = resigned(world, replace(adverts[3], **{field: key}))
    error = refuses(puppets[0], world.key_list({**adverts, 3: bad}.values()), PeerError, why)
    assert error.culprit == 3


def test_the_same_channel_and_mask_key_is_refused() -> None:
    world, puppets, adverts = advertised()
    bad = resigned(world, replace(adverts[3], channel=adverts[3].mask))
    refuses(puppets[0], world.key_list({**adverts, 3: bad}.values()), PeerError, "are the same")


def test_without_signatures_on_keys_the_server_reads_every_share_and_lays_the_victim_bare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys swapped in flight: the server puts its own in place of everybody else's."""
    real = dealing.verify

    def blind(public: bytes, signature: bytes, message: bytes, *, signer: int) -> None:
        if not message.startswith(labels.SIGN_KEYS):
            real(public, signature, message, signer=signer)

    world, puppets, adverts = advertised()
    plan, victim = world.plan, puppets[0]
    fake = {v: World(plan, name=b"fake").puppet(v) for v in plan.ids if v != 0}
    faked = {0: adverts[0]} | {v: replace(p.client.hello(), signature=bytes(64)) for v, p in fake.items()}
    refuses(victim.fork(), world.key_list(faked.values()), PeerError, "wrong signature")

    monkeypatch.setattr(dealing, "verify", blind)
    made = victim.tell(world.key_list(faked.values()))
    size, places, points = box_bytes(plan), [v for v in plan.ids if v != 0], {}
    for place, v in enumerate(places):
        agreed = fake[v].client._channel_key.agree(adverts[0].channel)
        sealed = made.boxes[place * size : (place + 1) * size]
        points[v] = reference.unseal(agreed, reference.box_address(plan.hash, 0, v), sealed)[32:]
    holders = sorted(points)[: plan.t]
    table = np.array([[list(points[v][33 * k : 33 * (k + 1)]) for v in holders] for k in (0, 1)], np.uint8)
    mask_key, seed = shamir.combine_each(shamir.coefficients([plan.index[v] for v in holders]), table)
    assert mask_key is not None
    assert seed is not None

    dealers = {v: replace(made, sender=v) for v in plan.ids} | {0: made}
    sent = victim.tell(world.bundle(0, dealers, dict.fromkeys(plan.ids, plan.ids)))
    bare, key = np.array(sent.vectors[0], np.uint32), AgreementKey.from_private(mask_key)
    add_masks(bare, [reference.self_key(seed, plan.hash, 0, 0)], [-1])
    for v in plan.ids[1:]:
        pair = reference.pairwise_key(key.agree(faked[v].mask), plan.hash, 0, v, 0)
        add_masks(bare, [pair], [-pairwise_sign(0, v)])
    assert bare.tolist() == world.inputs[0].tolist()


def test_another_plan_for_the_same_update_is_refused() -> None:
    """A repeat with another context could ask for another sum of the same update."""
    world = World(make_plan(5))
    world.run_to(Stage.SHARES)
    other = World(make_plan(5, context=b"another model"), name=b"again")
    other.journals = world.journals
    puppets = other.run_to(Stage.KEYS)
    adverts = [p.find(KeyAdvert) for p in puppets.values()]
    refuses(puppets[0], other.key_list(adverts), AlreadyUsed, "another plan")


def test_the_same_plan_may_be_tried_again_before_stage_three() -> None:
    world = World(make_plan(5))
    world.run_to(Stage.INPUTS)
    puppets = world.run_to(Stage.UNMASKING, number=1)
    assert all(p.client.state is State.DONE for p in puppets.values())
    attacker = world.attacker()
    assert [found.clients for found in attacker.learned] == [frozenset(range(5))]
    assert attacker.more_than_agreed() == []


def test_a_context_that_is_not_mine_is_refused() -> None:
    world = World(make_plan(5, context=b"the model that everybody has"))
    puppets = world.run_to(Stage.KEYS)
    asked = world.key_list(p.find(KeyAdvert) for p in puppets.values())
    with pytest.raises(PlanRefused, match="context"):
        puppets[0].tell(asked, context=b"the model that I was given")
    assert puppets[0].client.state is State.FAILED


PARTS_OF_A_PLAN: dict[str, dict[str, Any]] = {
    "round": {"round": 6},
    "agreement": {"training_id": bytes(32)},
    "roster": {"roster": make_plan(6).roster[1:]},
    "thresholds": {"threshold": 5},
    "vector": {"length": 4, "segments": (Segment(shape=(4,), bound=10**6),)},
    "weights": {"weights": (2, 2, 2, 2, 2)},
    "schedule": {"schedule": Schedule(name="random", size=4)},
    "seed": {"training_seed": bytes(32)},
    "policy": {"policy": Policy(anonymity=3)},
    "graph": {"degree": 4, "threshold": 4},
    "context": {"context": b"another model"},
}


@pytest.mark.parametrize("part", PARTS_OF_A_PLAN)
def test_a_server_with_another_plan_is_refused_and_told_in_what_it_differs(part: str) -> None:
    world, puppets, adverts = advertised()
    liar = World(replace(world.plan, **PARTS_OF_A_PLAN[part]), agreed=world.agreed)
    other = liar.key_list(adverts.values())
    refuses(puppets[0], other, PlanRefused, f"the server's {part} differs from mine")


def test_a_sparse_plan_that_is_too_risky_is_refused() -> None:
    graph: dict[str, Any] = {"degree": 4, "threshold": 3, "colluders": 3}
    risk = make_plan(8, **graph).sparse_risk(0)
    for allowed, refused in ((risk / 2, True), (risk, False)):
        plan = make_plan(8, **graph, sparse_risk=allowed)
        world = World(plan)
        puppets = world.attempt()
        adverts = {v: p.hello() for v, p in puppets.items()}
        asked = world.key_list(adverts[v] for v in plan.peers(0))
        if refused:
            refuses(puppets[0], asked, PlanRefused, "neighbourhoods are too small")
        else:
            puppets[0].tell(asked)


def test_hashes_of_parts_do_not_make_a_plan() -> None:
    world, puppets, adverts = advertised()
    forged = replace(world.key_list(adverts.values()), plan=bytes(32))
    refuses(puppets[0], forged, PlanRefused, "the server's plan differs from mine")


def dealt(n: int = 5, **changes: object) -> tuple[World, dict[int, Puppet], dict[int, Dealing], dict[int, list[int]]]:
    world = World(make_plan(n, **changes))
    puppets = world.run_to(Stage.SHARES)
    dealings = {v: p.find(Dealing) for v, p in puppets.items()}
    return world, puppets, dealings, {v: list(world.plan.ids) for v in dealings}


@pytest.mark.parametrize("order", ["twice", "unsorted", "without me", "outside U1"])
def test_u2_is_inside_u1_with_me_once_each_in_order(order: str) -> None:
    world, puppets, dealings, dealt_to = dealt()
    bundle = world.bundle(0, dealings, dealt_to)
    dealers = {
        "twice": (*bundle.dealers, bundle.dealers[4]),
        "unsorted": tuple(bundle.dealers[v] for v in (0, 2, 1, 3, 4)),
        "without me": bundle.dealers[1:],
        "outside U1": (*bundle.dealers, replace(bundle.dealers[4], id=5)),
    }
    refuses(puppets[0], replace(bundle, dealers=dealers[order]), PeerError, "U2 must be inside U1")


def test_u2_below_the_threshold_is_refused() -> None:
    world, puppets, dealings, dealt_to = dealt()
    few = {v: dealings[v] for v in range(world.plan.t - 1)}
    refuses(puppets[0], world.bundle(0, few, dealt_to), TooFewSurvivors, "threshold")


@pytest.mark.parametrize("count", [0, 2])
def test_a_dealer_without_one_commitment_per_grouping_is_refused(count: int) -> None:
    world, puppets, dealings, dealt_to = dealt()
    bundle = world.bundle(0, dealings, dealt_to)
    dealers = list(bundle.dealers)
    dealers[3] = replace(dealers[3], commitments=dealers[3].commitments[:1] * count)
    refuses(puppets[0], replace(bundle, dealers=tuple(dealers)), PeerError, "expected 1 commitments")


@pytest.mark.parametrize("field", ["root", "commitments"])
def test_my_own_dealing_may_not_be_altered(field: str) -> None:
    """Otherwise a server could show the others a seed commitment or root that I never made."""
    world, puppets, dealings, dealt_to = dealt()
    forged = replace(dealings[0], **{field: getattr(dealings[1], field)})
    bundle = world.bundle(0, {**dealings, 0: forged}, dealt_to)
    refuses(puppets[0], bundle, PeerError, "a dealing under my id that I did not send")


@pytest.mark.parametrize("part", ["boxes", "proofs"])
@pytest.mark.parametrize("change", ["missing", "extra", "cut"])
def test_a_bundle_has_one_box_and_one_proof_per_dealer(part: str, change: str) -> None:
    world, puppets, dealings, dealt_to = dealt()
    bundle = world.bundle(0, dealings, dealt_to)
    data, size = getattr(bundle, part), len(getattr(bundle, part)) // 4
    changed = {"missing": data[size:], "extra": data + data[:size], "cut": data[:-1]}[change]
    refuses(puppets[0], replace(bundle, **{part: changed}), PeerError, "proof")


@pytest.mark.parametrize("trick", ["reflected", "redirected", "corrupted", "from another run"])
def test_a_box_that_was_not_sealed_by_this_dealer_for_me_in_this_run_is_a_disputed_pair(trick: str) -> None:
    world, puppets, dealings, dealt_to = dealt()
    size = box_bytes(world.plan)
    bundle = world.bundle(0, dealings, dealt_to)
    mine, again = dealings[0].boxes, World(world.plan, name=b"another run")
    replaced = {
        "reflected": mine[:size],  # what I sealed for client 1, back as if it were from client 1
        "redirected": bundle.boxes[size : 2 * size],  # client 2's box as if it were client 1's
        "corrupted": bundle.boxes[: size - 1] + bytes([bundle.boxes[size - 1] ^ 1]),
        "from another run": again.run_to(Stage.SHARES)[1].find(Dealing).boxes[:size],
    }[trick]
    sent = puppets[0].tell(replace(bundle, boxes=replaced + bundle.boxes[size:]))
    assert sent.disputes == (1,)


def test_a_share_that_its_dealer_did_not_sign_is_a_disputed_pair() -> None:
    """The box opens, but its content is under no root that the dealer showed everybody."""
    world, puppets, dealings, dealt_to = dealt()
    bundle = world.bundle(0, dealings, dealt_to)
    dealers = list(bundle.dealers)
    dealers[2] = replace(dealers[2], root=dealers[3].root)
    sent = puppets[0].tell(replace(bundle, dealers=tuple(dealers)))
    assert sent.disputes == (2,)


def test_disputed_shares_are_never_given_on() -> None:
    world, puppets, dealings, dealt_to = dealt()
    for v, p in puppets.items():
        bundle = world.bundle(v, dealings, dealt_to)
        if v == 0:
            bundle = replace(bundle, boxes=bytes(box_bytes(world.plan)) + bundle.boxes[box_bytes(world.plan) :])
        p.tell(bundle)
    asked = world.survivors(p.find(MaskedInput) for p in puppets.values())
    for p in puppets.values():
        p.tell(asked)
    endorsed = world.signatures([p.find(Consistency) for p in puppets.values()])
    assert 1 not in puppets[0].tell(endorsed).seed_owners
    assert 1 in puppets[2].tell(endorsed).seed_owners


def test_the_update_enters_with_the_bundle_and_a_bad_one_is_the_applications_mistake() -> None:
    world, puppets, dealings, dealt_to = dealt()
    client, bundle = puppets[0].client, world.bundle(0, dealings, dealt_to)
    for update in (None, np.zeros(2, np.int64), np.zeros((1, 3), np.int64), np.full(3, 10**6 + 1)):
        with pytest.raises(UsageError):
            client.receive(bundle, update=update)
        assert client.state is State.DEALT
    assert isinstance(client.receive(bundle, update=np.ones(3, np.int64)), MaskedInput)


def masked(n: int = 5, **changes: object) -> tuple[World, dict[int, Puppet], dict[int, MaskedInput]]:
    world = World(make_plan(n, **changes))
    puppets = world.run_to(Stage.INPUTS)
    return world, puppets, {v: p.find(MaskedInput) for v, p in puppets.items()}


@pytest.mark.parametrize("order", ["twice", "unsorted", "without me"])
def test_u3_names_me_and_everyone_once_in_order(order: str) -> None:
    world, puppets, inputs = masked()
    asked = world.survivors(inputs.values())
    members = {
        "twice": (*asked.members, asked.members[4]),
        "unsorted": tuple(asked.members[v] for v in (0, 2, 1, 3, 4)),
        "without me": asked.members[1:],
    }
    refuses(puppets[0], replace(asked, members=members[order]), PeerError, "survivors must name me")


def test_u3_outside_u2_is_refused() -> None:
    world, plan = World(make_plan(6)), make_plan(6)
    puppets = world.run_to(Stage.INPUTS, absent={5: Stage.SHARES})
    members = [puppets[v].find(MaskedInput) for v in range(5)]
    view = world.view_of(puppets[0])
    statement = transcript.view_statement(plan.hash, 5, view, (), bytes(32))
    asked = world.survivors([*members, Survivor(5, (), bytes(32), signed(5, statement))])
    refuses(puppets[0], asked, PeerError, "survivors must be inside U2")


def test_u3_below_the_threshold_is_refused() -> None:
    world, puppets, inputs = masked()
    few = world.survivors((inputs[v] for v in range(world.plan.t - 1)), rows=())
    refuses(puppets[0], few, TooFewSurvivors, "threshold")


def test_a_member_of_u3_that_signed_another_view_or_none_is_refused_and_named() -> None:
    world, puppets, inputs = masked()
    again = World(world.plan, name=b"another run").run_to(Stage.INPUTS)
    next_round = World(make_plan(5, round=world.plan.round + 1), name=b"another round").run_to(Stage.INPUTS)
    disputing = replace(inputs[2], disputes=(1,))
    honest = survivor(inputs[2])
    for bad in (
        replace(inputs[2], signature=bytes(64)),
        replace(inputs[2], signature=inputs[3].signature),
        replace(inputs[2], signature=again[2].find(MaskedInput).signature),
        disputing,
        # vectors that it did not send: nobody's, another's, its own of another run or round
        replace(honest, vectors_hash=bytes(32)),
        replace(honest, vectors_hash=survivor(inputs[3]).vectors_hash),
        replace(honest, vectors_hash=survivor(again[2].find(MaskedInput)).vectors_hash),
        survivor(again[2].find(MaskedInput)),
        survivor(next_round[2].find(MaskedInput)),
        replace(survivor(inputs[3]), id=2),
    ):
        asked = world.survivors({**inputs, 2: bad}.values())
        error = refuses(puppets[0].fork(), asked, PeerError, "client 2: wrong signature")
        assert error.culprit == 2


def test_vectors_under_my_id_that_i_did_not_send_are_refused() -> None:
    world, puppets, inputs = masked()
    asked = world.survivors({**inputs, 0: replace(survivor(inputs[0]), vectors_hash=bytes(32))}.values())
    assert refuses(puppets[0], asked, PeerError, "client 0: wrong signature").culprit == 0


def test_a_sparse_client_signs_no_other_vectors_under_its_own_id() -> None:
    plan = make_plan(12, degree=6, threshold=3, colluders=1, sparse_risk=0.1)
    cluster = Cluster(plan, make_inputs(plan)).start()
    for _ in range(2):
        cluster.deliver_all()
        cluster.advance()
    cluster.deliver_all()
    asked = cluster.server.advance()[0]
    assert isinstance(asked, Survivors)
    forged = replace(
        asked, members=tuple(replace(m, vectors_hash=bytes(32)) if m.id == 0 else m for m in asked.members)
    )
    with pytest.raises(PeerError, match="client 0: wrong signature"):
        cluster.clients[0].receive(forged)


def test_one_client_with_different_vectors_for_different_clients_opens_nothing() -> None:
    """Client 4 signs two sets of vectors. Whatever the server shows to whom, at most one set has t signatures."""
    world, puppets, inputs = masked(colluders=1)
    world.colluders, view = frozenset({4}), world.view_of(puppets[0])
    asked = [world.survivors({**inputs, 4: world.collude_on_view(4, view, bytes([k]) * 32)}.values()) for k in range(2)]
    for v in range(4):
        puppets[v].tell(asked[v % 2])
    for v in range(4):
        mine = [puppets[w].find(Consistency) for w in range(4) if w % 2 == v % 2]
        mine.append(world.collude_on_opening(4, view, asked[v % 2]))
        refuses(puppets[v].fork(), world.signatures(mine), TooFewSurvivors, "threshold")
        everybody = [puppets[w].find(Consistency) for w in range(4)]
        error = refuses(puppets[v].fork(), world.signatures(everybody), PeerError, "wrong signature")
        assert error.culprit == 1 - v % 2
    assert not world.attacker().learned


def test_a_group_that_the_audit_closes_is_refused() -> None:
    plan = make_plan(6, schedule=Schedule(name="random", size=3), policy=Policy(anonymity=2), colluders=0)
    (a, b, _), _ = plan.groupings[0]
    world = World(plan)
    puppets = world.run_to(Stage.INPUTS, absent={a: Stage.INPUTS, b: Stage.INPUTS})
    inputs = [p.find(MaskedInput) for v, p in puppets.items() if v not in (a, b)]
    asked = world.survivors(inputs)
    assert asked.groups == ((0, 1),)
    one = next(p for v, p in puppets.items() if v not in (a, b))
    refuses(one.fork(), replace(asked, groups=((0, 0), (0, 1))), PeerError, r"group \(0, 0\), which my audit closes")
    refuses(one.fork(), replace(asked, groups=((0, 1), (7, 0))), PeerError, "no such group")
    assert isinstance(one.fork().tell(asked), Consistency)
    assert isinstance(one.fork().tell(replace(asked, groups=())), Consistency)  # fewer groups are always allowed


def test_without_the_audit_a_group_of_one_survivor_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack that the check above stops: the server claims that two of a group of three dropped out."""
    plan = make_plan(6, schedule=Schedule(name="random", size=3), policy=Policy(anonymity=2), colluders=0)
    (a, b, victim), _ = plan.groupings[0]
    world = World(plan)
    puppets = world.run_to(Stage.INPUTS)
    left = {v: p for v, p in puppets.items() if v not in (a, b)}
    asked = world.survivors((p.find(MaskedInput) for p in left.values()), rows=((0, 0),))
    everything = frozenset({(0, 0), (0, 1)})
    monkeypatch.setattr(
        world.cache, "verdict", lambda plan, survivors: replace(plan.audit(survivors), opened=everything)
    )
    for p in left.values():
        p.tell(asked)
    for p in left.values():
        p.tell(world.signatures(p.find(Consistency) for p in left.values()))
    attacker = world.attacker()
    assert [found.clients for found in attacker.learned] == [frozenset({victim})]
    assert attacker.is_right(attacker.learned[0])


def test_a_sparse_run_with_too_many_dropouts_is_refused() -> None:
    """Six dropouts of twelve on a ring with six neighbours each may disconnect the others."""
    plan = make_plan(12, degree=6, threshold=3, colluders=1, sparse_risk=0.1)
    for count, allowed in ((5, True), (6, False)):
        world = World(plan)
        puppets = world.run_to(Stage.KEYS)
        adverts = {v: p.find(KeyAdvert) for v, p in puppets.items()}
        for v, p in puppets.items():
            p.tell(world.key_list(adverts[w] for w in plan.peers(v)))
        dealings = {v: p.find(Dealing) for v, p in puppets.items()}
        dealt_to = {v: plan.peers(v) for v in plan.ids}
        for v, p in puppets.items():
            p.tell(world.bundle(v, {w: dealings[w] for w in plan.peers(v)}, dealt_to))
        gone = [v for v in plan.ids if v not in plan.peers(0)][:5]
        gone += [v for v in plan.peers(0) if v != 0][: count - len(gone)]
        inputs = [p.find(MaskedInput) for v, p in puppets.items() if v not in gone]
        if allowed:
            assert isinstance(puppets[0].tell(world.survivors(inputs)), Consistency)
        else:
            refuses(puppets[0], world.survivors(inputs), PeerError, "may be disconnected")


def test_a_repeat_with_other_survivors_is_refused_after_stage_three() -> None:
    world = World(make_plan(5))
    world.run_to(Stage.CONSISTENCY)
    puppets = world.run_to(Stage.INPUTS, number=1, absent={4: Stage.INPUTS})
    asked = world.survivors(p.find(MaskedInput) for v, p in puppets.items() if v != 4)
    refuses(puppets[0], asked, AlreadyUsed, "opened before")


def test_a_repeat_with_the_same_survivors_is_refused_after_stage_three() -> None:
    """Resumed, never repeated: in a second run a retrained update would differ from the first by itself."""
    world = World(make_plan(5))
    world.run_to(Stage.CONSISTENCY)
    puppets = world.run_to(Stage.INPUTS, number=1)
    asked = world.survivors(p.find(MaskedInput) for p in puppets.values())
    refuses(puppets[0], asked, AlreadyUsed, "opened before")


def test_an_opening_belongs_to_one_run_also_if_the_hashes_of_the_inputs_were_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record names the run (its U2), and not only the masked vectors: one of the two is enough to refuse."""
    monkeypatch.setattr(transcript, "inputs_hash", lambda members: bytes(32))
    world = World(make_plan(5))
    world.run_to(Stage.CONSISTENCY)
    puppets = world.run_to(Stage.INPUTS, number=1)
    asked = world.survivors(p.find(MaskedInput) for p in puppets.values())
    refuses(puppets[0], asked, AlreadyUsed, "opened before")


def test_without_the_opening_record_two_survivor_sets_lay_a_victim_bare() -> None:
    """Run once with everybody and once without client 4, for the same updates: the difference is client 4."""
    world = World(make_plan(5))
    world.run_to(Stage.UNMASKING)
    world.journals.update({v: MemoryJournal() for v in world.plan.ids})  # storage rolled back
    world.run_to(Stage.UNMASKING, number=1, absent={4: Stage.INPUTS})
    attacker = world.attacker()
    by_clients = {found.clients: np.array(found.value) for found in attacker.learned}
    difference = by_clients[frozenset(range(5))] - by_clients[frozenset(range(4))]
    assert difference.tolist() == world.inputs[4].tolist()


@pytest.mark.parametrize("change", ["other survivors", "fewer rows"])
def test_a_second_answer_in_stage_three_is_the_same_or_none(change: str) -> None:
    world, puppets, inputs = masked()
    asked = world.survivors(inputs.values())
    first = puppets[0].tell(asked)
    assert puppets[0].tell(asked) == first
    other = {"other survivors": world.survivors(inputs[v] for v in range(4)), "fewer rows": replace(asked, groups=())}[
        change
    ]
    refuses(puppets[0], other, PeerError, "Survivors not expected in state SIGNED")


def test_the_record_lets_a_restored_client_sign_the_same_opening_or_fewer_groups_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, puppets, inputs = masked(6, schedule=Schedule(name="random", size=3), colluders=0)
    asked = world.survivors(inputs.values())
    assert len(asked.groups) == 2
    fewer, four = replace(asked, groups=asked.groups[:1]), world.survivors(inputs[v] for v in range(5))

    def interrupted(client: Client) -> None:
        raise KeyboardInterrupt

    def crashed_after(first: Survivors) -> Puppet:
        """A client that recorded an opening, and whose process died before the answer left."""
        before = puppets[0].fork()
        twin = before.fork()
        twin.client._journal = before.client._journal  # the same disk
        with monkeypatch.context() as power_cut:
            power_cut.setattr(Client, "_take_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                before.tell(first)
        return twin

    assert isinstance(crashed_after(asked).tell(asked), Consistency)
    assert isinstance(crashed_after(asked).tell(fewer), Consistency)
    refuses(crashed_after(fewer), asked, AlreadyUsed, "opened before")
    refuses(crashed_after(asked), four, AlreadyUsed, "opened before")


def consistent(
    n: int = 5, absent: dict[int, Stage] | None = None, **changes: object
) -> tuple[World, dict[int, Puppet]]:
    world = World(make_plan(n, **changes))
    return world, world.run_to(Stage.CONSISTENCY, absent=absent)


def test_t_signatures_open_and_one_less_does_not() -> None:
    world, puppets = consistent()
    made = [p.find(Consistency) for p in puppets.values()]
    refuses(puppets[0], world.signatures(made[: world.plan.t - 1]), TooFewSurvivors, "threshold")
    assert isinstance(puppets[1].tell(world.signatures(made[: world.plan.t])), Unmasking)


def test_a_signer_counts_once() -> None:
    world, puppets = consistent()
    made = [p.find(Consistency) for p in puppets.values()]
    refuses(puppets[0], world.signatures([made[0]] * world.plan.t), PeerError, "counts once")


def test_only_members_of_u3_may_sign_the_opening() -> None:
    world, puppets = consistent(6, absent={5: Stage.INPUTS}, colluders=0)
    asked, view = puppets[0].heard(Survivors), world.view_of(puppets[0])
    world.colluders = frozenset({5})
    outsider = world.collude_on_opening(5, view, asked)
    made = [puppets[v].find(Consistency) for v in range(world.plan.t - 1)]
    refuses(puppets[0], world.signatures([*made, outsider]), PeerError, "client 5 may not sign")


def test_a_signature_over_anything_else_does_not_count() -> None:
    world, puppets = consistent()
    made = {v: p.find(Consistency) for v, p in puppets.items()}
    again = World(world.plan, name=b"another run").run_to(Stage.CONSISTENCY)
    asked, view, plan = puppets[0].heard(Survivors), world.view_of(puppets[0]), world.plan
    ids, inputs = [member.id for member in asked.members], transcript.inputs_hash(asked.members)
    for bad in (
        bytes(64),
        made[3].signature,
        again[2].find(Consistency).signature,  # the same plan, U3 and groups, another run
        signed(2, transcript.opening(plan, view, ids[:-1], inputs, asked.groups)),  # another U3
        signed(2, transcript.opening(plan, view, ids, inputs, ())),  # other groups
        signed(2, transcript.opening(plan, bytes(32), ids, inputs, asked.groups)),  # another view
        signed(2, transcript.opening(plan, view, ids, bytes(32), asked.groups)),  # other vectors
    ):
        forged = {**made, 2: Consistency(2, bad)}
        error = refuses(puppets[0].fork(), world.signatures(forged.values()), PeerError, "client 2: wrong signature")
        assert error.culprit == 2


def test_client_gives_one_kind_of_share_per_peer_and_never_unmasks_twice() -> None:
    world, puppets = consistent(7, absent={5: Stage.INPUTS, 6: Stage.CONSISTENCY}, colluders=1)
    made = world.signatures([p.find(Consistency) for v, p in puppets.items() if v < 5])
    first = puppets[0].tell(made)
    assert (first.seed_owners, first.key_owners) == ((0, 1, 2, 3, 4, 6), (5,))
    assert both_kinds(puppets[0].said) == set()
    assert puppets[0].tell(made) == first  # a duplicate
    refuses(puppets[0], replace(made, endorsements=made.endorsements[:-1]), PeerError, "not expected in state DONE")


def test_only_seeds_of_opened_groups_and_keys_of_their_members_leave() -> None:
    plan = make_plan(9, schedule=Schedule(name="random", size=3, groupings=2), colluders=0)
    world = World(plan)
    gone = plan.groupings[0][0][0]
    puppets = world.run_to(Stage.INPUTS, absent={gone: Stage.INPUTS})
    inputs = [p.find(MaskedInput) for v, p in puppets.items() if v != gone]
    opened = sorted(plan.audit([v for v in plan.ids if v != gone]).opened)
    other = next(group for group in opened if gone not in plan.group(group))
    live = {v: p for v, p in puppets.items() if v != gone}
    for p in live.values():
        p.tell(world.survivors(inputs, rows=(other,)))
    shares = {}
    for v, p in live.items():
        shares[v] = p.tell(world.signatures([p.find(Consistency) for p in live.values()]))
    for message in shares.values():
        assert set(message.seed_owners) == set(plan.group(other)) - {gone}
        assert len(message.seeds) == len(message.seed_owners) * 65
        assert message.key_owners == ()  # the dropped client is in no opened group
    attacker = world.attacker()
    assert attacker.more_than_agreed() == []
    assert [found.clients for found in attacker.learned] == [frozenset(plan.group(other))]


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_below_the_threshold_nothing_is_revealed(absent: int) -> None:
    """Whatever t - 1 clients were brought to say, no secret but their own seeds, and no sum follows."""
    world = World(make_plan(5, colluders=1))
    t = world.plan.t
    puppets = world.run_to(Stage.CONSISTENCY)
    signed_by = world.signatures([p.find(Consistency) for p in puppets.values()])
    for v in range(t - 1 - absent):
        puppets[v].tell(signed_by)
    attacker = world.attacker()
    given = {puppets[v].find(Dealing).root for v in range(t - 1 - absent)}
    assert set(attacker.rebuilt) == {(root, 1) for root in given}
    assert attacker.learned == []


def test_the_sum_of_an_opened_group_is_all_that_follows_for_every_dropout_stage() -> None:
    for stages in permutations((Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY), 2):
        world = World(make_plan(7, colluders=1, threshold=5), inputs=None)
        world.run_to(Stage.UNMASKING, absent=dict(zip((5, 6), stages, strict=True)))
        attacker = world.attacker()
        survivors = frozenset(v for v, s in zip((5, 6), stages, strict=True) if s > Stage.INPUTS) | set(range(5))
        assert [found.clients for found in attacker.learned] == [survivors]
        assert attacker.is_right(attacker.learned[0])
        assert attacker.more_than_agreed() == []
        assert not attacker.both_kinds()


def test_same_inputs_in_two_runs_give_other_masked_vectors_whose_difference_is_not_the_inputs() -> None:
    plan = make_plan(5, length=64)
    inputs = make_inputs(plan)
    first, second = (World(plan, inputs=inputs, name=name).run_to(Stage.INPUTS) for name in (b"first", b"second"))
    differences = []
    for v in plan.ids:
        a, b = (run[v].find(MaskedInput).vectors[0] for run in (first, second))
        differences.append(a - b)
        assert not np.array_equal(a, b)
        assert np.count_nonzero(a == b) < 4
        assert np.count_nonzero(a - b == inputs[v].astype(np.uint32)) < 4
        assert np.unique(a - b).size > 60  # not one constant, as a reused stream would give
    for i, d in enumerate(differences):
        for e in differences[i + 1 :]:
            assert np.count_nonzero(d == e) < 4


def test_masks_of_two_groupings_of_one_client_differ() -> None:
    plan = make_plan(6, schedule=Schedule(name="random", size=3, groupings=2), length=64, colluders=0)
    for p in World(plan).run_to(Stage.INPUTS).values():
        a, b = p.find(MaskedInput).vectors
        assert np.count_nonzero(a == b) < 4


def test_masked_vectors_look_uniform_whatever_the_input() -> None:
    """Every bit of what a client sends is set half the time, for an input of zeros."""
    plan = make_plan(4, length=4096)
    inputs = {v: np.zeros(plan.length, np.int64) for v in plan.ids}
    for p in World(plan, inputs=inputs).run_to(Stage.INPUTS).values():
        sent = p.find(MaskedInput).vectors[0]
        ones = [np.count_nonzero(sent >> np.uint32(bit) & np.uint32(1)) for bit in range(32)]
        assert all(abs(count - 2048) < 6 * 32 for count in ones)  # six standard deviations of 32
