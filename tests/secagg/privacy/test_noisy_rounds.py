"""Whole groups with noise: what the agreement says, what a client adds and pays, and what it refuses."""

import dataclasses
import json
import os
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secagg
from secagg import (
    Agreement,
    AgreementRefused,
    Budget,
    BudgetExceeded,
    Floors,
    MemoryJournal,
    Policy,
    UsageError,
    WireError,
)
from secagg.agreement import Noise, Proposal, all_rounds, read_agreement, round_figures, write_agreement
from secagg.agreement.cost import LOCAL, flat_charge, over_budget, round_charge, survivors_reserve, survivors_settled
from secagg.agreement.file import read_floors
from secagg.cli.main import main
from secagg.crypto import Segment, SegmentNoise
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.privacy import Charge
from secagg.privacy.budget import RHO_UNIT
from secagg.protocol.noise import NoiseSource
from secagg.simulation import make_agreement
from secagg.whole import Client, FileStore, Hello, MemoryStore, Server, Store, Task, respond
from tests.secagg.drbg import Drbg

ROUND = Policy(memory="round")
REPORT = Policy(memory="round", mode=REPORT_EVEN_IF_EXPOSED)


def noise(clip: float = 10, sigma: int = 40, colluders: int = 1) -> Noise:
    return Noise(segments=(SegmentNoise(clip=clip, sigma=sigma),), colluders=colluders)


def counts(**more: Any) -> tuple[Agreement, dict[int, Any]]:
    return make_agreement(
        **{"members": 6, "size": 6, "length": 4, "bound": 1000, "noise": noise(), "rounds": 20} | more
    )


class Cast:
    """Clients with a store each, and a server."""

    def __init__(self, budget: Budget | None = None, stores: dict[int, Store] | None = None, **more: Any) -> None:
        self.agreement, self.identities = counts(**more)
        self.signatures = {v: self.agreement.sign(v, one) for v, one in self.identities.items()}
        self.clients = {v: self.client(v, budget) for v in self.identities}
        self.stores: dict[int, Store] = stores or {v: MemoryStore() for v in self.identities}
        self.server = Server(self.agreement)

    def client(self, me: int, budget: Budget | None = None, entropy: Any = None) -> Client:
        more = {} if entropy is None else {"entropy": entropy}
        return Client(self.agreement, self.signatures, me, self.identities[me], budget=budget, **more)

    def tasks(self, round: int) -> dict[int, Task]:
        for v, client in self.clients.items():
            if round == 0:
                self.server.receive(v, client.receive(Hello(self.agreement.fingerprint, round)))  # type: ignore[arg-type]
        found = {v: self.clients[v].receive(message) for v, message in self.server.begin(round).items()}
        return {v: task for v, task in found.items() if isinstance(task, Task)}

    def round(self, round: int, update: Any) -> Any:
        for v, task in self.tasks(round).items():
            self.server.receive(v, b"".join(respond(self.clients[v], self.stores[v], task, update)))
        return self.server.close()


# --- the section -----------------------------------------------------------------------------------------


def test_noise_stands_in_the_file_and_in_the_bytes_of_an_agreement() -> None:
    agreement, _ = counts()
    text = write_agreement(Proposal.of(agreement))
    assert "\n[noise]\nclip = 10.0\nsigma = 40\ncolluders = 1\n" in text
    assert read_agreement(text).agreement == agreement == Agreement.from_bytes(agreement.to_bytes())
    without = dataclasses.replace(agreement.terms, noise=None)
    assert agreement.terms.to_bytes().startswith(without.to_bytes())
    assert agreement.terms.hash != without.hash


def test_noise_of_several_segments_is_a_list_in_the_file() -> None:
    agreement, _ = counts()
    parts = (Segment(name="a", shape=(2,), clip=64.0), Segment(name="b", shape=(), bound=9))
    both = Noise(segments=(SegmentNoise(clip=1.5, sigma=7), SegmentNoise(clip=3, sigma=9)), colluders=0)
    terms = dataclasses.replace(agreement.terms, segments=parts, noise=both)
    text = write_agreement(Proposal(terms=terms))
    assert "clip = [1.5, 3.0]\nsigma = [7, 9]\n" in text
    assert read_agreement(text).terms == terms


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("sigma = 40.5", r"noise\[0\].sigma: expected a whole number"),
        ("sigma = [1, 2]", "as many clips as sigmas, got 1 and 2"),
        ("sigma = 0", "sigma"),
        ("sigmas = 4", "did you mean 'sigma'"),
        ("", "noise.sigma: expected a number, or a list with one for each segment, but the key is missing"),
    ],
)
def test_a_wrong_section_in_a_file_is_refused_in_words(line: str, problem: str) -> None:
    text = write_agreement(Proposal.of(counts()[0])).replace("sigma = 40", line)
    with pytest.raises(UsageError, match=problem):
        read_agreement(text)


def test_noise_that_cannot_be_kept_is_refused_in_bytes() -> None:
    data = bytearray(counts()[0].terms.to_bytes())
    data[-4:] = bytes(4)  # sigma 0
    with pytest.raises(WireError, match="noise that cannot be kept"):
        type(counts()[0].terms).from_bytes(bytes(data))


def test_noise_is_refused_where_sums_would_wrap() -> None:
    with pytest.raises(UsageError, match=r"sigma 50000000 is too large: .* use at most \d+$"):
        counts(bound=3 * 10**8, noise=noise(clip=3e8, sigma=50_000_000))
    with pytest.raises(UsageError, match="larger clip of the segment"):
        counts(bound=None, clip=1.0, noise=noise(clip=1.0, sigma=50_000_000))
    counts(bound=None, clip=256.0, noise=noise(clip=1.0, sigma=50_000_000))


def test_noise_is_refused_where_a_clip_is_less_than_a_step() -> None:
    with pytest.raises(UsageError, match="smaller than a step of the grid"):
        counts(noise=noise(clip=0.5))
    weights = [1] * 5 + [1000]
    with pytest.raises(UsageError, match="smaller than a step of the grid"):
        counts(bound=None, clip=2.0**20, noise=noise(clip=2.0**-7), weights=weights, policy=Policy(max_leverage=1.0))


def test_noise_is_refused_where_it_is_too_small_for_the_grid() -> None:
    """One group has short kernel vectors; cycles through many groups need more noise, and the error says how much."""
    counts(noise=noise(sigma=1, clip=1))
    two = {"members": 36, "size": 6, "groupings": 2, "schedule": "random", "policy": REPORT, "rounds": 1}
    with pytest.raises(AgreementRefused, match=r"sigma 1 is too small for the grid: .* use at least (\d+)") as told:
        counts(noise=noise(sigma=1, clip=1), **two)
    least = int(str(told.value).split("use at least ")[1])
    counts(noise=noise(sigma=least, clip=1), **two)
    assert 1 < least < 10


def test_colluders_leave_at_least_one_member() -> None:
    with pytest.raises(UsageError, match=r"noise.colluders: expected at most 5"):
        counts(noise=noise(colluders=6))


# --- what it costs ---------------------------------------------------------------------------------------


def test_three_figures_stand_together() -> None:
    agreement, _ = counts()
    found = round_figures(agreement, 0, 3)
    rho = [one.rho * RHO_UNIT for one in (found.everybody, found.assumed, found.local)]
    assert rho == pytest.approx([100 / (2 * 1600) / 6, 100 / (2 * 1600) / 5, 100 / (2 * 1600)])
    assert all_rounds(agreement).assumed == found.assumed.times(20)
    assert found.local.eta == 0


def test_heavier_members_pay_more() -> None:
    weights = [1, 1, 1, 1, 1, 3]
    agreement, _ = counts(bound=None, clip=64.0, noise=noise(clip=1.0, sigma=10**6), weights=weights,
                          policy=Policy(max_leverage=1.0))  # fmt: skip
    light, heavy = (round_charge(agreement, 0, v).rho for v in (0, 5))
    assert heavy / light == pytest.approx(9, rel=1e-5)
    assert all_rounds(agreement).assumed.rho == 20 * heavy


@pytest.mark.parametrize(
    ("schedule", "share"),
    [
        ({"schedule": "fixed", "size": 4}, Fraction(1, 3)),
        ({"schedule": "random", "size": 6, "policy": ROUND}, Fraction(1, 5)),
        ({"schedule": "atoms", "size": 6, "atom": 3, "groupings": 2}, Fraction(1, 2)),
        ({"schedule": "atoms", "size": 6, "atom": 3}, Fraction(1, 5)),
    ],
)
def test_the_charge_of_a_round_is_a_constant_of_the_agreement(schedule: dict[str, Any], share: Fraction) -> None:
    agreement, _ = counts(members=12, rounds=3, **schedule)
    found = {round_charge(agreement, t, v).rho for t in range(3) for v in range(12)}
    assert found == {Charge.of(share * Fraction(100, 2 * 40**2), 0.0).rho}
    assert all_rounds(agreement).assumed.rho == 3 * found.pop()


def test_several_groupings_cost_what_their_worst_member_pays() -> None:
    agreement, _ = counts(members=18, size=6, groupings=2, schedule="random", policy=REPORT, rounds=3)
    every = [[round_charge(agreement, t, v, 1).rho for v in range(18)] for t in range(3)]
    assert all_rounds(agreement).assumed.rho == 3 * max(map(max, every))
    local = round_charge(agreement, 0, 0, LOCAL).rho
    assert local / 6 < min(map(min, every)) <= max(map(max, every)) <= local


def test_transversal_groupings_cost_the_same_in_every_round() -> None:
    agreement, _ = counts(members=36, size=6, groupings=2, schedule="transversal", policy=ROUND, rounds=3)
    every = {round_charge(agreement, t, v).rho for t in range(3) for v in range(36)}
    assert max(every) - min(every) <= 1
    assert abs(all_rounds(agreement).assumed.rho - 3 * max(every)) <= 3


def test_a_heavy_member_that_the_first_round_leaves_out_counts_in_the_others() -> None:
    """37 members on a grid of 36: with unequal weights, rounds differ by more than the members' names."""
    weights = [2] * 37
    weights[14] = 3
    agreement, _ = make_agreement(
        members=37,
        size=6,
        schedule="transversal",
        groupings=2,
        rounds=3,
        length=4,
        clip=1.0,
        weights=weights,
        noise=Noise(segments=(SegmentNoise(clip=1, sigma=2 * 10**7),), colluders=1),
        policy=ROUND,
        entropy=Drbg(b"a test"),
    )
    every = [
        max(round_charge(agreement, t, v).rho for group in agreement.groupings(t)[0] for v in group) for t in range(3)
    ]
    assert every[0] < every[1]
    assert all_rounds(agreement).assumed.rho == 3 * max(every)


def test_many_rounds_of_new_groupings_are_not_judged_one_by_one() -> None:
    agreement, _ = counts(members=18, size=6, groupings=2, schedule="random", policy=REPORT, rounds=1000)
    found = all_rounds(agreement)
    assert found.everybody == found.assumed == found.local


def test_a_flat_sum_that_may_shrink_is_shown_at_its_smallest_and_charged_as_it_is() -> None:
    cast = Cast(policy=ROUND)
    least = all_rounds(cast.agreement).assumed.rho / 20
    assert least * RHO_UNIT == pytest.approx(100 / 3200 / 2, rel=1e-6)  # three members, one of them a colluder
    release = cast.clients[5].release(0)
    cast.clients[5].stored(cast.stores[5].keep(release))
    cast.server.receive(5, b"".join(release.parts))
    for v in range(5):
        cast.server.receive(v, cast.clients[v].receive(Hello(cast.agreement.fingerprint, 0)))  # type: ignore[arg-type]
    for v, message in cast.server.begin(0).items():
        task = cast.clients[v].receive(message)
        assert isinstance(task, Task)
        cast.server.receive(v, b"".join(respond(cast.clients[v], cast.stores[v], task, np.zeros(4, int))))
    assert len(cast.server.close().groups) == 1
    assert cast.clients[0].spent.rho * RHO_UNIT == pytest.approx(100 / 3200 / 4, rel=1e-6)
    assert cast.clients[5].spent == Charge() == cast.stores[5].spent()


def test_survivors_reserve_the_worst_and_settle_what_was_opened() -> None:
    agreement, _ = counts(members=12, size=6, groups="survivors", policy=ROUND)
    reserved = survivors_reserve(agreement.terms, 0)
    assert reserved.rho * RHO_UNIT == pytest.approx(100 / 3200 / 2, rel=1e-6)
    settled = survivors_settled(agreement.terms, 0, [(0, 1, 2, 3, 4), (5, 6, 7)])
    assert settled.rho * RHO_UNIT == pytest.approx(100 / 3200 / 4, rel=1e-6)
    assert survivors_settled(agreement.terms, 0, [(5, 6, 7)]) == Charge()
    assert all_rounds(agreement).assumed == reserved.times(20)


# --- clients ---------------------------------------------------------------------------------------------


def test_sums_have_the_noise_of_all_members() -> None:
    cast = Cast(length=4000, rounds=2, noise=noise(clip=5000, sigma=1000))
    total = cast.round(0, np.full(4000, 10)).sum((0, 0)).astype(float)
    assert abs(total.mean() - 60) < 200
    assert abs(total.std() / (1000 * 6**0.5) - 1) < 0.06
    again = cast.round(1, np.full(4000, 10)).sum((0, 0)).astype(float)
    assert abs(np.corrcoef(total, again)[0, 1]) < 0.08  # noise is new in every round


def test_all_groupings_get_the_same_noise_so_that_sums_agree_with_each_other() -> None:
    cast = Cast(members=12, size=6, groupings=2, schedule="atoms", atom=3, noise=noise(sigma=500), rounds=1)
    result = cast.round(0, np.arange(4))
    totals = [sum(result.sum((r, g)) for g in range(2)) for r in range(2)]
    assert np.array_equal(*totals)
    assert result.inconsistent == ()


def test_noise_is_drawn_ahead_and_used_once() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return Drbg(str(len(asked)).encode())(count)

    cast = Cast(rounds=2)
    cast.clients[0] = cast.client(0, entropy=entropy)
    tasks = cast.tasks(0)
    cast.clients[0].prepare()
    before = asked.count(16)
    cast.clients[0].prepare()
    first = cast.clients[0].answer(tasks[0], np.zeros(4, int))
    assert asked.count(16) == before == 1
    assert first.charge is not None


def test_prepared_noise_is_not_used_by_a_forked_process() -> None:
    encoding = counts()[0].terms.encoding
    source = NoiseSource(os.urandom, 1)
    noisy = [np.zeros(4, np.uint32) for _ in range(2)]
    NoiseSource(os.urandom, 1).prepare(encoding)  # loads what is compiled
    source.prepare(encoding)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            source.add_to(encoding, noisy[0])
            os.write(writing, noisy[0].tobytes())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        theirs = np.frombuffer(pipe.read(), np.uint32)
    source.add_to(encoding, noisy[1])
    assert len(theirs) == 4
    assert not np.array_equal(theirs, noisy[1])


def test_an_answer_is_paid_before_it_is_stored_and_the_budget_is_never_exceeded() -> None:
    each = round_charge(counts()[0], 0, 0)
    budget = Budget(1.0, 1e-5)
    fitting = budget.limit.rho // each.rho
    assert 1 <= fitting < 20
    cast = Cast(budget)
    for t in range(fitting):
        cast.round(t, np.zeros(4, int))
    tasks = cast.tasks(fitting)
    with pytest.raises(BudgetExceeded, match="nothing was sent"):
        respond(cast.clients[0], cast.stores[0], tasks[0], np.zeros(4, int))
    assert cast.clients[0].pending is None
    assert cast.stores[0].look(tasks[0].slot) is None
    assert cast.clients[0].spent == cast.stores[0].spent() == each.times(fitting)
    assert cast.clients[0].spent.epsilon(1e-5) <= 1.0


def test_trainings_that_share_a_store_share_the_budget(tmp_path: Path) -> None:
    budget = Budget(0.6, 1e-5)
    for _training in range(2):
        cast = Cast(budget, {v: FileStore(tmp_path / str(v)) for v in range(6)})
        sent = 0
        for t in range(20):
            try:
                cast.round(t, np.zeros(4, int))
                sent += 1
            except BudgetExceeded:
                break
        assert cast.stores[0].spent().epsilon(1e-5) <= 0.6
    assert sent == 0


def test_an_answer_that_is_sent_again_costs_nothing(tmp_path: Path) -> None:
    cast = Cast(None, {v: FileStore(tmp_path / str(v)) for v in range(6)})
    for v, client in cast.clients.items():
        cast.server.receive(v, client.receive(Hello(cast.agreement.fingerprint, 0)))  # type: ignore[arg-type]
    message, saved = cast.server.begin(0)[0], cast.clients[0].save()
    answers = []
    for update in (np.zeros(4, int), np.ones(4, int)):
        client = Client.restore(saved, cast.agreement, cast.signatures, 0, cast.identities[0])
        task = client.receive(message)
        assert isinstance(task, Task)
        answers.append(b"".join(respond(client, FileStore(tmp_path / "0"), task, update)))
    assert answers[0] == answers[1]
    assert cast.stores[0].spent() == round_charge(cast.agreement, 0, 0)


def test_an_answer_for_fewer_members_is_paid_after_one_for_more_was_lost(tmp_path: Path) -> None:
    """A client pays, is killed before its answer is stored, and is called again with fewer members."""

    class Killed(BaseException):
        pass

    class Dying(FileStore):
        def _write(self, *_: Any) -> None:
            raise Killed

    cast = Cast(roll_call=True, policy=Policy(memory="round", anonymity=3))
    adverts = {v: client.receive(Hello(cast.agreement.fingerprint, 0)) for v, client in cast.clients.items()}
    many, few = (flat_charge(cast.agreement.terms, 0, members, 1) for members in (6, 3))
    budget, saved = Budget((many.epsilon(1e-5) + few.epsilon(1e-5)) / 2, 1e-5), cast.clients[0].save()
    assert budget.allows(many)

    def called(members: int, budget: Budget | None) -> tuple[Client, Task]:
        server = Server(cast.agreement)
        for v, advert in adverts.items():
            server.receive(v, advert)  # type: ignore[arg-type]
        client = Client.restore(saved, cast.agreement, cast.signatures, 0, cast.identities[0], budget=budget)
        task = client.receive(server.begin(0, present=range(members))[0])
        assert isinstance(task, Task)
        return client, task

    client, task = called(6, budget)
    with pytest.raises(Killed):
        respond(client, Dying(tmp_path), task, np.zeros(4, int))
    store = FileStore(tmp_path)
    assert store.spent() == many
    client, task = called(3, budget)
    with pytest.raises(BudgetExceeded):
        respond(client, store, task, np.zeros(4, int))
    client, task = called(3, None)
    respond(client, store, task, np.zeros(4, int))
    assert store.spent() == many + few


def test_what_was_spent_is_saved_with_the_client() -> None:
    cast = Cast()
    cast.round(0, np.zeros(4, int))
    restored = Client.restore(cast.clients[2].save(), cast.agreement, cast.signatures, 2, cast.identities[2])
    assert restored.spent == cast.clients[2].spent != Charge()


def test_a_budget_needs_noise() -> None:
    with pytest.raises(UsageError, match="no noise"):
        Cast(Budget(1.0, 1e-5), noise=None)
    with pytest.raises(UsageError, match="budget: expected Budget"):
        Cast(1.0)  # type: ignore[arg-type]


def test_what_exceeds_a_budget_is_refused_in_words_that_say_what_would_fit() -> None:
    agreement, _ = counts()
    floors, each = Floors(budget=Budget(1.0, 1e-5)), round_charge(agreement, 0, 0)
    assert floors.budget is not None
    fitting = floors.budget.limit.rho // each.rho
    for what in (agreement, agreement.terms):
        with pytest.raises(AgreementRefused, match=f"; {fitting} rounds or sigma = .* would fit") as told:
            floors.check(what)
    sigma = int(str(told.value).split("sigma = ")[1].split()[0])
    floors.check(counts(rounds=fitting)[0])
    floors.check(counts(noise=noise(sigma=sigma))[0].terms)
    with pytest.raises(AgreementRefused, match="it has no noise"):
        floors.check(counts(noise=None)[0])
    assert "nothing is left" in over_budget(agreement.terms, each, floors.budget, floors.budget.limit)


def test_a_budget_that_depends_on_the_seed_is_judged_with_it() -> None:
    agreement, _ = counts(members=36, size=6, groupings=2, schedule="transversal", policy=ROUND, rounds=2)
    floors = Floors(budget=Budget(0.01, 1e-5), memory="round")
    assert [floor for floor, _ in floors.crossed(agreement.terms)] == []
    assert [floor for floor, _ in floors.crossed(agreement)] == ["budget"]
    atoms, _ = counts(members=12, size=6, groupings=2, schedule="atoms", atom=3)
    assert [floor for floor, _ in floors.crossed(atoms.terms)] == ["budget"]


def test_floors_have_a_budget_in_their_file() -> None:
    assert read_floors("budget = { epsilon = 8, delta = 1e-6 }").budget == Budget(8, 1e-6)
    for text in ("budget = 8", "budget = { epsilon = 8 }", "budget = { epsilon = 0, delta = 1e-6 }"):
        with pytest.raises(UsageError, match="budget"):
            read_floors(text)


def test_agree_prints_the_three_figures_of_a_round_and_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agreement, _ = counts()
    path, floors = tmp_path / "agreement.toml", tmp_path / "floors.toml"
    path.write_text(write_agreement(Proposal.of(agreement)))
    floors.write_text("budget = { epsilon = 1.0, delta = 1e-5 }")
    assert main(["agree", str(path), "--delta", "1e-5"]) == 0
    text = capsys.readouterr().out
    one, every = round_figures(agreement, 0, 0).epsilons(1e-5), all_rounds(agreement).epsilons(1e-5)
    for figures in (one, every):
        assert (
            f"epsilon {figures[1]:.3g} if 1 client colludes or adds no noise; {figures[0]:.3g} if everybody adds "
            f"noise; {figures[2]:.3g} by the own noise alone (delta 1e-05)"
        ) in text
    assert "all 20 rounds together: " in text
    assert "only noise bounds that" not in text
    assert main(["agree", str(path), "--floors", str(floors), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["cost"]["training"]["assumed"] == pytest.approx(every[1])
    assert "my budget is 1" in found["below_floors"][0]


# --- survivors -------------------------------------------------------------------------------------------


class SurvivorsCast:
    """Clients of an agreement with survivors, with a journal each, stage by stage."""

    def __init__(self, budget: Budget | None = None, journals: dict[int, MemoryJournal] | None = None) -> None:
        more = {"members": 8, "size": 8, "groups": "survivors", "policy": ROUND}
        self.agreement, self.identities = counts(length=2000, noise=noise(clip=10, sigma=100), **more)
        self.journals = journals or {v: MemoryJournal() for v in range(8)}
        self.budget = budget

    def start(self) -> None:
        self.clients = {
            v: secagg.Client(v, self.identities[v], self.agreement, 0, self.journals[v], budget=self.budget)
            for v in range(8)
        }
        self.server = secagg.Server(self.agreement.plan(0, 0, b""))
        for v, client in self.clients.items():
            self.server.receive(v, client.hello())
        self.outbox = self.server.advance()

    def stage(self, present: Collection[int] = range(8), update: Any = None) -> None:
        for v in present:
            client = self.clients[v]
            client.prepare()
            self.server.receive(v, client.receive(self.outbox[v], update=update))
        self.outbox = self.server.advance()


def test_survivors_reserve_with_the_masked_input_and_settle_when_t_have_signed() -> None:
    cast = SurvivorsCast()
    cast.start()
    cast.stage()
    assert cast.clients[0].spent == Charge()
    cast.stage(range(7), update=np.full(2000, 0))
    reserved = survivors_reserve(cast.agreement.terms, 0)
    assert cast.clients[0].spent == reserved != Charge()
    cast.stage(range(7))
    assert cast.clients[0].spent == reserved
    cast.stage(range(6))
    settled = survivors_settled(cast.agreement.terms, 0, [tuple(range(7))])
    assert [cast.clients[v].spent for v in range(8)] == [settled] * 6 + [reserved, Charge()]
    assert settled.rho < reserved.rho
    total = cast.server.result().sum().astype(float)
    assert abs(total.std() / (100 * 7**0.5) - 1) < 0.1


def test_a_repeated_run_of_an_update_is_paid_once() -> None:
    cast = SurvivorsCast()
    for _run in range(3):
        cast.start()
        cast.stage()
        cast.stage(update=np.zeros(2000, int))
    assert cast.clients[0].spent == survivors_reserve(cast.agreement.terms, 0)


def test_a_client_of_survivors_does_not_send_beyond_its_budget() -> None:
    cast = SurvivorsCast(Budget(0.01, 1e-6))
    cast.start()
    cast.stage()
    with pytest.raises(BudgetExceeded, match="nothing was sent"):
        cast.clients[0].receive(cast.outbox[0], update=np.zeros(2000, int))
    assert cast.clients[0].spent == Charge()
    agreement, identities = counts(members=8, size=8, groups="survivors", policy=ROUND, noise=None)
    with pytest.raises(UsageError, match="no noise"):
        secagg.Client(0, identities[0], agreement, 0, MemoryJournal(), budget=Budget(1, 1e-6))
