"""A server that tells different clients different things of U1, U2 or U3 learns nothing more for it.

Every split for n <= 5, with real Clients: each client's every future is computed once (`Lab`) and the
splits are put together from them. What "learns" means is `Attacker`: from all shares that honest clients gave
and colluders hold, and all masked vectors, everything that can be computed. It must be sums of groups over
the one U3 that honest clients signed, and nothing else.

The same search, with the check of the U2 view taken out of the clients, must find a victim's bare vector:
a test that cannot fail would prove nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import pytest

from secagg import Plan, Schedule, Stage, labels
from secagg.protocol import client_checks
from secagg.protocol.messages import Consistency, Dealing, MaskedInput, Survivor, Survivors
from tests.secagg.cluster import make_plan, remembered_signatures
from tests.secagg.malicious import Attacker, Learned, Puppet, World, survivor

Ids = tuple[int, ...]


@pytest.fixture(autouse=True)
def _fast_signatures() -> Iterator[None]:
    with remembered_signatures():
        yield


def subsets_with(me: int, ids: Sequence[int], least: int) -> list[Ids]:
    """Every subset of `ids` that holds `me` and has at least so many members."""
    others = [v for v in ids if v != me]
    return [
        tuple(sorted((me, *chosen)))
        for size in range(len(others), least - 2, -1)
        for chosen in combinations(others, size)
    ]


@dataclass(frozen=True)
class View:
    """What one client is shown: U1, and U2 inside it."""

    u1: Ids
    u2: Ids


class Lab:
    """Every honest client of one plan in every future that a splitting server can give it, each made once."""

    def __init__(self, plan: Plan, colluders: Sequence[int]) -> None:
        self.world = World(plan, colluders=colluders)
        self.plan, self.honest = plan, self.world.honest
        self.start = self.world.attempt()
        self.adverts = {v: puppet.hello() for v, puppet in self.start.items()}
        self._dealt: dict[tuple[int, Ids], Puppet | None] = {}
        self._masked: dict[object, Puppet | None] = {}
        self._signed: dict[object, Puppet | None] = {}
        self._unmasked: dict[object, Puppet | None] = {}

    def dealt(self, v: int, u1: Ids) -> Puppet | None:
        if (v, u1) not in self._dealt:
            puppet = self.start[v].fork()
            reply = puppet.offer(self.world.key_list(self.adverts[w] for w in u1), in_bytes=False)
            self._dealt[v, u1] = puppet if reply is not None else None
        return self._dealt[v, u1]

    def u1_of(self, views: dict[int, View], v: int) -> Ids:
        """Colluders deal to everybody, honest clients to the U1 that they were shown."""
        return views[v].u1 if v in views else self.plan.ids

    def masked(self, v: int, views: dict[int, View]) -> Puppet | None:
        view = views[v]
        key = (v, view, tuple(self.u1_of(views, w) for w in view.u2))
        if key not in self._masked:
            before = self.dealt(v, view.u1)
            dealers = {w: self.dealt(w, self.u1_of(views, w)) for w in view.u2}
            self._masked[key] = None
            if before is not None and all(dealers.values()):
                puppet = before.fork()
                dealings = {w: dealer.find(Dealing) for w, dealer in dealers.items() if dealer}
                dealt_to = {w: self.u1_of(views, w) for w in dealings}
                if puppet.offer(self.world.bundle(v, dealings, dealt_to), in_bytes=False) is not None:
                    self._masked[key] = puppet
        return self._masked[key]

    def signed(self, v: int, views: dict[int, View], u3: Ids) -> Puppet | None:
        """The client asked to sign U3, with the signatures that its members really gave.

        Colluders sign whatever view this client has.
        """
        before = self.masked(v, views)
        if before is None:
            return None
        digest, members = self.world.view_of(before), []
        for w in u3:
            if w in self.world.colluders:
                members.append(self.world.collude_on_view(w, digest))
            elif (puppet := self.masked(w, views)) is not None:
                sent = puppet.find(MaskedInput)
                members.append(survivor(sent))
            else:
                return None  # no signature to show
        key = (v, views[v], digest, tuple(member.signature for member in members))
        if key not in self._signed:
            puppet = before.fork()
            reply = puppet.offer(self.world.survivors(members), in_bytes=False)
            self._signed[key] = puppet if reply is not None else None
        return self._signed[key]

    def unmasked(self, puppet: Puppet, signed: Sequence[Puppet]) -> Puppet:
        """The client shown every signature that fits: of honest clients who signed the same, and colluders.

        It comes back as it was if it refuses.
        """
        asked, digest = puppet.heard(Survivors), self.world.view_of(puppet)
        ids = [member.id for member in asked.members]
        endorsements = [
            other.find(Consistency)
            for other in signed
            if self.world.view_of(other) == digest
            and [m.id for m in other.heard(Survivors).members] == ids
            and other.heard(Survivors).groups == asked.groups
        ]
        endorsements += [
            self.world.collude_on_opening(c, digest, asked) for c in sorted(self.world.colluders) if c in ids
        ]
        key = (id(puppet), tuple(sorted(made.signature for made in endorsements)))
        if key not in self._unmasked:
            last = puppet.fork()
            self._unmasked[key] = last if last.offer(self.world.signatures(endorsements), in_bytes=False) else None
        return self._unmasked[key] or puppet

    def outcomes(self, views: dict[int, View], *, silent: bool) -> Iterator[Attacker]:
        """Every way to go on from these views: each client is named every U3 that it would sign."""
        if any(self.masked(v, views) is None for v in self.honest):
            return
        choices: list[list[Puppet]] = []
        for v in self.honest:
            waiting = self.masked(v, views)
            assert waiting is not None
            futures = [self.signed(v, views, u3) for u3 in subsets_with(v, self.plan.ids, 1)]
            accepted = [future for future in futures if future is not None]
            choices.append([*accepted, waiting] if silent or not accepted else accepted)
        colluders = [self.start[c] for c in sorted(self.world.colluders)]
        for future in product(*choices):
            signed = [p for p in future if any(isinstance(m, Consistency) for m in p.said)]
            last = [self.unmasked(p, signed) if p in signed else p for p in future]
            yield Attacker(self.world, last, [*last, *colluders])


def too_much(lab: Lab, splits: Iterator[dict[int, View]], *, silent: bool = True) -> tuple[int, int, Learned | None]:
    """How many splits and outcomes were tried, and the first thing learned beyond the agreed sums."""
    tried = outcomes = 0
    for views in splits:
        tried += 1
        for attacker in lab.outcomes(views, silent=silent):
            outcomes += 1
            beyond = attacker.more_than_agreed()
            if beyond:
                assert attacker.is_right(beyond[0])
                return tried, outcomes, beyond[0]
            assert not attacker.both_kinds()
            opened = {found.clients for found in attacker.learned}
            assert all(attacker.is_right(found) for found in attacker.learned)
            if opened:
                assert len(opened_sets(attacker)) == 1
    return tried, outcomes, None


def opened_sets(attacker: Attacker) -> set[frozenset[int]]:
    """The survivor sets for which a client gave shares."""
    return {
        frozenset(m.id for m in p.heard(Survivors).members) for p in attacker.honest if p.client.state.name == "DONE"
    }


def splits_of_u1(plan: Plan, honest: Sequence[int]) -> Iterator[dict[int, View]]:
    per_client = [[View(u1, u1) for u1 in subsets_with(v, plan.ids, plan.t)] for v in honest]
    for views in product(*per_client):
        yield dict(zip(honest, views, strict=True))


def splits_of_u2(plan: Plan, honest: Sequence[int]) -> Iterator[dict[int, View]]:
    per_client = [[View(plan.ids, u2) for u2 in subsets_with(v, plan.ids, plan.t)] for v in honest]
    for views in product(*per_client):
        yield dict(zip(honest, views, strict=True))


def splits_of_both(plan: Plan, honest: Sequence[int]) -> Iterator[dict[int, View]]:
    per_client = [
        [View(u1, u2) for u1 in subsets_with(v, plan.ids, plan.t) for u2 in subsets_with(v, u1, plan.t)] for v in honest
    ]
    for views in product(*per_client):
        yield dict(zip(honest, views, strict=True))


FLAT = {n: Schedule(name="random", size=n) for n in (3, 4, 5)}
PAIRS = Schedule(name="random", size=2)
TWICE = Schedule(name="random", size=2, groupings=2)

LONG = pytest.mark.long

# n, colluders, threshold, schedule. 2t > n + colluders leaves these thresholds (t = n has no split at all).
JOINT = [
    (3, 0, 2, FLAT[3]),
    (3, 1, 3, FLAT[3]),
    (4, 1, 3, PAIRS),
    (4, 2, 4, FLAT[4]),
    *(
        pytest.param(case, marks=LONG)
        for case in (
            (4, 0, 3, FLAT[4]),
            (4, 0, 3, PAIRS),
            (4, 0, 3, TWICE),
            (4, 1, 3, FLAT[4]),
            (4, 1, 3, TWICE),
            (5, 2, 4, FLAT[5]),
            (5, 2, 4, PAIRS),
        )
    ),
]
APART = [
    ((5, 1, 4, FLAT[5]), "u2"),
    ((5, 2, 4, PAIRS), "u1"),
    *(
        pytest.param(case, which, marks=LONG)
        for case, which in (
            ((5, 1, 4, FLAT[5]), "u1"),
            ((5, 1, 4, PAIRS), "u1"),
            ((5, 1, 4, PAIRS), "u2"),
            ((5, 0, 4, PAIRS), "u1"),
            ((5, 0, 4, PAIRS), "u2"),
            ((5, 0, 3, FLAT[5]), "u2"),
        )
    ),
]
SPLITS = {"u1": splits_of_u1, "u2": splits_of_u2}


def lab_for(n: int, colluders: int, t: int, schedule: Schedule) -> Lab:
    plan = make_plan(n, colluders=colluders, threshold=t, schedule=schedule, length=2)
    return Lab(plan, range(n - colluders, n))


def name_of(case: object) -> str:
    if not isinstance(case, tuple):
        return str(case)
    n, colluders, t, schedule = case
    return f"n{n}-c{colluders}-t{t}-{schedule.groupings}x{schedule.size}"


@pytest.mark.parametrize("case", JOINT, ids=name_of)
def test_every_split_of_u1_u2_and_u3_together_reveals_nothing_more(case: tuple[int, int, int, Schedule]) -> None:
    lab = lab_for(*case)
    tried, outcomes, found = too_much(lab, splits_of_both(lab.plan, lab.honest))
    assert found is None
    assert outcomes >= tried >= 1


@pytest.mark.parametrize(("case", "which"), APART, ids=name_of)
def test_every_split_of_u1_or_u2_and_then_of_u3_reveals_nothing_more(
    case: tuple[int, int, int, Schedule], which: str
) -> None:
    lab = lab_for(*case)
    _, outcomes, found = too_much(lab, SPLITS[which](lab.plan, lab.honest), silent=False)
    assert found is None
    assert outcomes > 0


def blind_to(label: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that take any signature over statements with this label."""
    real = client_checks.verify

    def verify(public: bytes, signature: bytes, message: bytes, *, signer: int) -> None:
        if not message.startswith(label):
            real(public, signature, message, signer=signer)

    monkeypatch.setattr(client_checks, "verify", verify)


@pytest.mark.parametrize("case", [(4, 0, 3, PAIRS), (4, 1, 3, TWICE), (4, 1, 3, PAIRS)], ids=name_of)
def test_without_the_check_of_the_u2_view_a_split_lays_a_victim_bare(
    case: tuple[int, int, int, Schedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one client is shown a U2 without its group-mate, and sends its vector without their mask."""
    blind_to(labels.SIGN_VIEW, monkeypatch)
    lab = lab_for(*case)
    _, _, found = too_much(lab, splits_of_u2(lab.plan, lab.honest), silent=False)
    assert found is not None
    assert len(found.clients) == 1


# A different U3 for every client: n = 8, t = 5, two groups of four. Each is shown a U3 that its own audit allows (at
# most two of a group missing), but for each of three clients of one group, t clients are told that it is missing.


def divided_survivors() -> tuple[World, dict[int, Puppet], dict[int, set[int]], int]:
    plan = make_plan(8, colluders=0, threshold=5, schedule=Schedule(name="random", size=4), length=2)
    (a, b, c, d), (e, f, g, h) = plan.groupings[0]
    world = World(plan)
    gone = {a: {b, c}, b: {c, d}, c: {b, d}, d: {b, c}, e: {b, d}, f: {c, d}, g: {b, c}, h: {d}}
    return world, world.run_to(Stage.INPUTS), gone, a


def open_divided(world: World, puppets: dict[int, Puppet], gone: dict[int, set[int]]) -> list[Puppet]:
    """Name everybody its own U3, then show everybody all the signatures; who went on to the end."""
    inputs = {v: p.find(MaskedInput) for v, p in puppets.items()}
    for v, p in puppets.items():
        p.tell(world.survivors(inputs[w] for w in inputs if w not in gone[v]))
    signed = [p.find(Consistency) for p in puppets.values()]
    done = []
    for p in puppets.values():
        named = {member.id for member in p.heard(Survivors).members}
        if p.offer(world.signatures(made for made in signed if made.sender in named)) is not None:
            done.append(p)
    return done


def test_different_survivors_told_to_everybody_open_nothing() -> None:
    world, puppets, gone, _ = divided_survivors()
    assert open_divided(world, puppets, gone) == []
    assert world.attacker().learned == []


def test_without_the_consistency_check_different_survivors_lay_a_victim_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    blind_to(labels.SIGN_OPENING, monkeypatch)
    world, puppets, gone, victim = divided_survivors()
    assert len(open_divided(world, puppets, gone)) == 8
    attacker = world.attacker()
    assert frozenset({victim}) in {found.clients for found in attacker.more_than_agreed()}
    assert all(attacker.is_right(found) for found in attacker.learned)


# Different keys: a client advertised twice (a colluder, or an honest client that was restarted), and
# each of the others is shown either advert. All 2^3 ways for n = 4.


def shown(world: World, twice: int, choice: Sequence[int]) -> tuple[list[Puppet], list[Puppet]]:
    """Everybody's run up to the masked inputs, where client `twice` has two adverts."""
    first, second = world.attempt(0), world.puppet(twice, 1)
    keys = {v: p.hello() for v, p in first.items()}
    both = (keys[twice], second.hello())
    others = [p for v, p in first.items() if v != twice]
    seen = dict(zip((p.me for p in others), choice, strict=True))
    for p in others:
        p.tell(world.key_list({**keys, twice: both[seen[p.me]]}.values()))
    first[twice].tell(world.key_list(keys.values()))
    second.tell(world.key_list({**keys, twice: both[1]}.values()))
    mine = [first[twice].find(Dealing), second.find(Dealing)]
    dealings = {p.me: p.find(Dealing) for p in others}
    dealt_to = dict.fromkeys(world.plan.ids, world.plan.ids)
    for p in others:
        p.tell(world.bundle(p.me, {**dealings, twice: mine[seen[p.me]]}, dealt_to))
    for p, made in zip((first[twice], second), mine, strict=True):
        p.tell(world.bundle(twice, {**dealings, twice: made}, dealt_to))
    return others, [first[twice], second]


@pytest.mark.parametrize("colluding", [False, True])
@pytest.mark.parametrize("choice", list(product((0, 1), repeat=3)), ids=str)
def test_two_adverts_of_one_client_shown_to_different_peers_open_nothing_more(
    choice: tuple[int, ...], colluding: bool
) -> None:
    plan = make_plan(4, colluders=1, threshold=3, length=2)
    world = World(plan, colluders=[0] if colluding else [])
    others, twins = shown(world, 0, choice)
    everybody = [*others, *([] if colluding else twins)]
    asked = {}
    for p in everybody:
        view, members = world.view_of(p), []
        for w in [q for q in everybody if q.me != 0 or q is p]:
            members.append(w.find(MaskedInput))
        if p.me != 0:  # one of the two clients 0 that signed the same view, if there is one
            zero: MaskedInput | Survivor | None
            if colluding:
                zero = world.collude_on_view(0, view)
            else:
                same = [t.find(MaskedInput) for t in twins if world.view_of(t) == view]
                zero = same[0] if same else twins[0].find(MaskedInput)
            members.append(zero)
        asked[p] = world.survivors(members)
        p.offer(asked[p])
    signed = [p for p in everybody if any(isinstance(m, Consistency) for m in p.said)]
    for p in signed:
        same_view = [q for q in signed if world.view_of(q) == world.view_of(p)]
        endorsements = {q.me: q.find(Consistency) for q in same_view}
        if colluding:
            endorsements[0] = world.collude_on_opening(0, world.view_of(p), asked[p])
        p.offer(world.signatures(endorsements.values()))
    attacker = world.attacker()
    assert attacker.more_than_agreed() == []
    assert not attacker.both_kinds()
    done = {p.me for p in everybody if p.client.state.name == "DONE"}
    assert bool(done) == (len(set(choice)) == 1)
    assert bool(attacker.learned) == bool(done)
