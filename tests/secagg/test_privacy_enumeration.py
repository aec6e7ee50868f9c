"""Privacy itself, by counting: for two input sets with equal opened sums, the server sees exactly the same.

The ring is tiny and the generator is replaced by true enumeration: every mask takes every value. The view of
the server is then a distribution that can be written down: masked vectors, the self masks that stage 4 gives
away, and the pairwise masks of dropped clients. Equal sums must give equal distributions, count for count;
unequal sums must not (or the test could not fail).

Twice: with the real Client's masking (in rings of 2 and 4 elements, which 2^32 maps onto), and with the plain
integers of `secagg.reference`, where the modulus is a parameter.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from secagg import Plan, Schedule, Stage, reference
from secagg.crypto import prg
from secagg.crypto.keys import AgreementKey, Identity
from secagg.protocol import masking
from secagg.protocol.messages import KeyAdvert
from tests.secagg.cluster import identities_of, make_plan
from tests.secagg.drbg import Drbg
from tests.secagg.malicious import World

Inputs = Mapping[int, int]
PAIRS_TWICE = Schedule(name="random", size=2, groupings=2)


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agreements, boxes, hashes and signatures are the same for all values of the masks: computed once."""
    agree, agreed = AgreementKey.agree, {}
    from_private = cache(AgreementKey.from_private)

    def remembered(key: AgreementKey, public: bytes) -> bytes:
        if (key.public, public) not in agreed:
            agreed[key.public, public] = agree(key, public)
        return agreed[key.public, public]

    monkeypatch.setattr(AgreementKey, "agree", remembered)
    monkeypatch.setattr(AgreementKey, "from_private", from_private)
    monkeypatch.setattr(Identity, "sign", cache(Identity.sign))
    for name in ("agree", "unseal", "share_hash", "sign"):
        monkeypatch.setattr(reference, name, cache(getattr(reference, name)))


class Masking:
    """The masking step of real Clients, with every mask a variable that the test sets."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan, self.world = plan, World(plan)
        puppets = self.world.run_to(Stage.SHARES)
        self.clients = {v: p.client for v, p in puppets.items()}
        self.adverts = {v: p.find(KeyAdvert) for v, p in puppets.items()}
        self.values: dict[bytes, int] = {}
        monkeypatch.setattr(masking, "add_masks", self._add)
        monkeypatch.setattr(masking, "self_key", cache(masking.self_key))
        remembered: dict[tuple[bytes, ...], Any] = {}

        def pairwise_keys(agreed: Any, plan_hash: bytes, pairs: Any) -> Any:
            known = (agreed.tobytes(), plan_hash, pairs.tobytes())
            if known not in remembered:
                remembered[known] = prg.pairwise_keys(agreed, plan_hash, pairs)
            return remembered[known]

        monkeypatch.setattr(masking, "pairwise_keys", pairwise_keys)
        self.keys = self._all_keys()
        self.absent: Sequence[bytes] = ()  # keys whose masks are left out

    def _add(self, vector: Any, keys: Sequence[bytes], signs: Sequence[int], **_: object) -> None:
        for key, sign in zip(keys, signs, strict=True):
            vector += np.uint32(sign * self.values[key] % 2**32)

    def own(self, v: int, r: int) -> bytes:
        return reference.self_key(self.clients[v]._memory.seeds[r], self.plan.hash, v, r)

    def between(self, v: int, w: int, r: int) -> bytes:
        agreed = AgreementKey.from_private(self.clients[v]._memory.mask).agree(self.adverts[w].mask)
        return reference.pairwise_key(agreed, self.plan.hash, v, w, r)

    def _all_keys(self) -> list[bytes]:
        """Every mask that occurs, once."""
        keys = {self.own(v, r) for v in self.plan.ids for r, _ in self.plan.groups_of[v]}
        for r, grouping in enumerate(self.plan.groupings):
            keys |= {self.between(v, w, r) for group in grouping for v in group for w in group if v < w}
        return sorted(keys)

    def views(
        self,
        inputs: Inputs,
        ring: int,
        *,
        opened: Sequence[tuple[int, int]],
        dropouts: Sequence[int] = (),
        seen_by: Mapping[int, Sequence[int]] | None = None,
    ) -> Counter[tuple[int, ...]]:
        """How often each view of the server occurs over all values of all masks.

        Clients in `dropouts` sent their vectors, but the server counts them as dropped. `seen_by` gives a
        client another U2 than the roster.
        """
        plan, counted = self.plan, Counter()  # type: ignore[var-annotated]
        shown = {v: (seen_by or {}).get(v, plan.ids) for v in plan.ids}
        members = {v: {w: self.adverts[w] for w in shown[v]} for v in plan.ids}
        revealed = [self.own(v, r) for r, g in opened for v in plan.group((r, g)) if v not in dropouts]
        revealed += [
            self.between(d, w, r) for d in dropouts for r, g in plan.groups_of[d] for w in plan.group((r, g)) if w != d
        ]
        encoded = {v: np.array([inputs[v]], np.uint32) for v in plan.ids}
        for values in product(range(ring), repeat=len(self.keys)):
            self.values = dict(zip(self.keys, values, strict=True)) | dict.fromkeys(self.absent, 0)
            view: list[int] = []
            for v, client in self.clients.items():
                view += (masking.masked_vectors(plan, client._memory, members[v], encoded[v]).ravel() % ring).tolist()
            counted[tuple(view + [self.values[key] for key in revealed])] += 1
        return counted


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> Masking:
    return Masking(make_plan(3, colluders=0, threshold=2, length=1), monkeypatch)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Masking:
    return Masking(make_plan(4, colluders=0, threshold=3, length=1), monkeypatch)


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Masking:
    return Masking(make_plan(4, colluders=0, threshold=3, schedule=PAIRS_TWICE, length=1), monkeypatch)


def test_equal_sums_give_the_same_distribution_of_views(flat: Masking) -> None:
    first = flat.views({0: 1, 1: 2, 2: 3}, 4, opened=[(0, 0)])
    assert sum(first.values()) == 4**6
    assert flat.views({0: 3, 1: 3, 2: 0}, 4, opened=[(0, 0)]) == first
    assert flat.views({0: 0, 1: 0, 2: 2}, 4, opened=[(0, 0)]) == first


def test_unequal_sums_give_views_that_never_coincide(flat: Masking) -> None:
    first = flat.views({0: 1, 1: 2, 2: 3}, 4, opened=[(0, 0)])
    other = flat.views({0: 1, 1: 2, 2: 0}, 4, opened=[(0, 0)])
    assert not set(first) & set(other)


def test_before_unmasking_the_view_is_uniform_whatever_the_inputs(flat: Masking) -> None:
    views = flat.views({0: 1, 1: 2, 2: 3}, 4, opened=[])
    assert set(views.values()) == {4**6 // 4**3}
    assert len(views) == 4**3


def test_a_dropped_clients_input_leaves_no_trace_though_its_vector_arrived(four: Masking) -> None:
    """Client 3's vector is there and its mask key is rebuilt, but its own mask is not."""
    opened = [(0, 0)]
    first = four.views({0: 0, 1: 1, 2: 1, 3: 0}, 2, opened=opened, dropouts=[3])
    assert four.views({0: 1, 1: 0, 2: 1, 3: 1}, 2, opened=opened, dropouts=[3]) == first
    assert four.views({0: 1, 1: 0, 2: 0, 3: 0}, 2, opened=opened, dropouts=[3]) != first


def test_without_its_own_mask_a_dropped_clients_vector_is_open(four: Masking) -> None:
    """Why the second mask is not optional: the test above fails without it, and every view shows the input."""
    four.absent = [four.own(v, 0) for v in four.plan.ids]
    four.keys = [key for key in four.keys if key not in four.absent]
    first = four.views({0: 0, 1: 1, 2: 1, 3: 0}, 2, opened=[(0, 0)], dropouts=[3])
    other = four.views({0: 1, 1: 0, 2: 1, 3: 1}, 2, opened=[(0, 0)], dropouts=[3])
    assert not set(first) & set(other)


def test_over_two_groupings_only_the_opened_sums_count(twice: Masking) -> None:
    plan = twice.plan
    rows = [(r, g) for r in range(2) for g in range(2)]
    first_inputs = {0: 1, 1: 0, 2: 1, 3: 1}
    by_sums: dict[tuple[int, ...], list[Counter[tuple[int, ...]]]] = {}
    opened = rows[:3]
    for bits in product(range(2), repeat=4):
        inputs = dict(enumerate(bits))
        sums = tuple(sum(inputs[v] for v in plan.group(row)) % 2 for row in opened)
        if sums == tuple(sum(first_inputs[v] for v in plan.group(row)) % 2 for row in opened):
            by_sums.setdefault(sums, []).append(twice.views(inputs, 2, opened=opened))
    (views,) = by_sums.values()
    assert len(views) >= 2
    assert all(view == views[0] for view in views)
    changed = {**first_inputs, plan.group(rows[0])[0]: 1 - first_inputs[plan.group(rows[0])[0]]}
    assert twice.views(changed, 2, opened=opened) != views[0]


def test_a_closed_sum_of_a_dropped_clients_group_stays_hidden(twice: Masking) -> None:
    """The mask key of a dropped client opens its pairwise masks in every grouping; self masks still hide."""
    plan = twice.plan
    dropouts = plan.group((0, 0))[0]
    opened = [(0, 1)]
    a, b = plan.group((0, 1))
    first = dict.fromkeys(plan.ids, 0)
    same = {**dict.fromkeys(plan.ids, 1), a: 1, b: 1}
    views = twice.views(first, 2, opened=opened, dropouts=[dropouts])
    assert twice.views(same, 2, opened=opened, dropouts=[dropouts]) == views
    assert twice.views({**first, a: 1}, 2, opened=opened, dropouts=[dropouts]) != views


def test_the_count_detects_a_client_that_was_lied_to_about_a_missing_group_mate(twice: Masking) -> None:
    """The split view of U2: here equal sums no longer give equal views, so the count finds that attack."""
    plan = twice.plan
    victim, mate = plan.group((0, 0))
    split = {victim: [v for v in plan.ids if v != mate]}
    first = dict.fromkeys(plan.ids, 0)
    same_sum = {**first, victim: 1, mate: 1}
    honest = [twice.views(inputs, 2, opened=[(0, 0)]) for inputs in (first, same_sum)]
    assert honest[0] == honest[1]
    attacked = [twice.views(inputs, 2, opened=[(0, 0)], seen_by=split) for inputs in (first, same_sum)]
    assert attacked[0] != attacked[1]


def reference_views(plan: Plan, inputs: Inputs, modulus: int, dropouts: Sequence[int]) -> Counter[tuple[int, ...]]:
    """The view of the server over all values of all masks, by the protocol in plain integers."""
    parties = {v: reference.Party(v, identities_of(plan)[v].private, Drbg(b"party %d" % v)) for v in plan.ids}
    seen = reference.Transcript(plan)
    reference.keys(seen, list(parties.values()))
    reference.share(seen, list(parties.values()))
    own = {v: reference.self_key(parties[v].seeds[0], plan.hash, v, 0) for v in plan.ids}
    pairs = {
        (v, w): reference.pairwise_key(reference.agree(parties[v].mask, seen.adverts[w].mask), plan.hash, v, w, 0)
        for v in plan.ids
        for w in plan.ids
        if v < w
    }
    names = [*own.values(), *pairs.values()]
    revealed = [own[v] for v in plan.ids if v not in dropouts]
    revealed += [pairs[tuple(sorted((d, w)))] for d in dropouts for w in plan.ids if w != d]  # type: ignore[index]
    counted: Counter[tuple[int, ...]] = Counter()
    vectors = {v: [inputs[v]] for v in plan.ids}
    for values in product(range(modulus), repeat=len(names)):
        table = dict(zip(names, values, strict=True))
        reference.mask(
            seen, list(parties.values()), vectors, modulus, lambda key, length, table=table: [table[key]] * length
        )
        view = [seen.masked[v][0][0] for v in plan.ids]
        counted[tuple(view + [table[key] for key in revealed])] += 1
    return counted


@pytest.mark.parametrize("dropouts", [[], [2]])
def test_the_reference_hides_all_but_the_sum_in_a_ring_of_three(dropouts: list[int]) -> None:
    plan = make_plan(3, colluders=0, threshold=2, length=1)
    first = reference_views(plan, {0: 2, 1: 0, 2: 1}, 3, dropouts)
    assert sum(first.values()) == 3**6
    same = {0: 1, 1: 1, 2: 2} if dropouts else {0: 0, 1: 1, 2: 2}
    assert reference_views(plan, same, 3, dropouts) == first
    assert reference_views(plan, {0: 0, 1: 0, 2: 1}, 3, dropouts) != first
