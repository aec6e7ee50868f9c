"""A server that repeats rounds, withholds, restarts and forks, and clients that die: never beyond the budget."""

import hashlib
import os
import signal
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import secagg
from secagg import Agreement, Budget, BudgetExceeded, Identity, MemoryJournal, Policy, SecAggError
from secagg.agreement import Noise
from secagg.agreement.cost import flat_charge, round_charge, survivors_reserve, survivors_settled
from secagg.crypto import SegmentNoise
from secagg.privacy import Charge
from secagg.protocol import spent
from secagg.simulation import make_agreement
from secagg.whole import Client, FileStore, Hello, MemoryStore, Resend, Round, respond
from tests.secagg.drbg import Drbg

NOISE = Noise(segments=(SegmentNoise(clip=10, sigma=40),), colluders=1)
BUDGET = Budget(1.0, 1e-5)  # a few rounds of one training


@cache
def training(number: int, groups: str) -> tuple[Agreement, dict[int, Identity]]:
    """Several trainings on the same data."""
    policy = Policy(memory="round")
    return make_agreement(
        members=4, size=4, length=2, bound=1000, rounds=6, groups=groups, policy=policy, noise=NOISE,
        entropy=Drbg(b"training %d" % number),
    )  # fmt: skip


class Killed(BaseException):
    """What a process that is killed sees: nothing."""


class Dying(MemoryJournal):
    """A journal in a process that is killed after some records."""

    left = -1

    def create(self, name: str, content: bytes) -> bytes | None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        found = super().create(name, content)
        return found


class Victim:
    """A client of whole groups whose process may die at any record, and whose saved bytes may be old."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.store = MemoryStore(journal)
        self.saved: dict[int, list[bytes]] = {}
        self.sent: set[tuple[int, int]] = set()

    def client(self, number: int, age: int) -> Client:
        agreement, identities = training(number, "whole")
        signatures = _signatures(number)
        old = self.saved.get(number, [])
        if not old:
            return Client(agreement, signatures, 0, identities[0], budget=BUDGET)
        data = old[-1 - age % len(old)]
        return Client.restore(data, agreement, signatures, 0, identities[0], budget=BUDGET)

    def answer(self, number: int, round: int, age: int) -> None:
        agreement, identities = training(number, "whole")
        client = self.client(number, age)
        mates = [Client(agreement, _signatures(number), v, identities[v]) for v in range(1, 4)]
        adverts = tuple(one.receive(Hello(agreement.fingerprint, round)) for one in (client, *mates))
        message = Round(
            fingerprint=agreement.fingerprint, round=round, data=b"", adverts=adverts, groups=((0, 0),), releases=()
        )  # type: ignore[arg-type]
        task = client.receive(message)
        if isinstance(task, Resend):
            self.store.load(task.name)
        else:
            respond(client, self.store, task, np.array([1, round]))  # type: ignore[arg-type]
        self.sent.add((number, round))
        self.saved.setdefault(number, []).append(client.save())

    @property
    def cost(self) -> Charge:
        total = Charge()
        for number, round in self.sent:
            total += round_charge(training(number, "whole")[0], round, 0)
        return total


@cache
def _signatures(number: int) -> dict[int, bytes]:
    agreement, identities = training(number, "whole")
    return {v: agreement.sign(v, one) for v, one in identities.items()}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 3), st.integers(-1, 3)), max_size=14))
def test_whole_groups_never_send_beyond_the_budget(steps: list[tuple[int, int, int, int]]) -> None:
    journal = Dying()
    victim = Victim(journal)
    for number, round, age, left in steps:
        journal.left = left
        with suppress(SecAggError, Killed):
            victim.answer(number, round, age)
        journal.left = -1
        assert BUDGET.allows(spent(journal))
        assert BUDGET.allows(victim.cost)
        assert victim.cost.rho <= spent(journal).rho


def test_a_server_that_asks_for_everything_gets_what_the_budget_allows_and_no_more() -> None:
    victim, refused = Victim(MemoryJournal()), 0
    for number in range(2):
        for round in range(6):
            try:
                victim.answer(number, round, 0)
            except BudgetExceeded:
                refused += 1
    each = round_charge(training(0, "whole")[0], 0, 0).rho
    assert len(victim.sent) == BUDGET.limit.rho // each
    assert refused == 12 - len(victim.sent) > 0


class Run:
    """One run with survivors, up to some stage; the victim is client 0 and may die."""

    def __init__(self, number: int, round: int, journal: MemoryJournal) -> None:
        self.agreement, identities = training(number, "survivors")
        mates = {v: MemoryJournal() for v in range(1, 4)}
        self.clients = {
            v: secagg.Client(v, one, self.agreement, round, journal if v == 0 else mates[v], budget=BUDGET)
            for v, one in identities.items()
        }
        self.server = secagg.Server(self.agreement.plan(round, 0, b""))

    def go(self, stages: int, sent: dict[tuple[int, int], Charge], key: tuple[int, int]) -> None:
        answers: dict[int, Any] = {v: client.hello() for v, client in self.clients.items()}
        for stage in range(stages + 1):
            for v, answer in answers.items():
                self.server.receive(v, answer)
            if stage == stages:
                return
            outbox = self.server.advance()
            answers = {}
            for v, message in outbox.items():
                update = np.array([1, 2]) if stage == 1 else None
                if v == 0 and stage == 3:  # what t clients have signed is what is opened, also if the victim dies now
                    sent[key] = survivors_settled(self.agreement.terms, 0, [(0, 1, 2, 3)])
                answers[v] = self.clients[v].receive(message, update=update)
                if v == 0 and stage == 1:
                    sent.setdefault(key, survivors_reserve(self.agreement.terms, 0))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 4), st.integers(-1, 8)), max_size=8))
def test_survivors_never_send_beyond_the_budget(steps: list[tuple[int, int, int, int]]) -> None:
    journal, sent = Dying(), dict[tuple[int, int], Charge]()
    for number, round, stages, left in steps:
        journal.left = left
        with suppress(SecAggError, Killed):
            Run(number, round, journal).go(stages, sent, (number, round))
        journal.left = -1
        total = Charge()
        for one in sent.values():
            total += one
        assert BUDGET.allows(spent(journal))
        assert BUDGET.allows(total)
        assert total.rho <= spent(journal).rho


def _answer_until_killed(folder: Path, log: int) -> None:
    """In a process of its own: answer whatever comes, and tell which answers leave."""
    for number in range(2):
        victim = Victim(MemoryJournal())
        victim.store = FileStore(folder)  # type: ignore[assignment]
        for round in range(6):
            with suppress(SecAggError):
                victim.answer(number, round, 0)
                os.write(log, b"%d %d\n" % (number, round))


def test_a_client_that_is_killed_again_and_again_stays_within_its_budget(tmp_path: Path) -> None:
    training(0, "whole"), training(1, "whole"), _signatures(0), _signatures(1)
    log = os.open(tmp_path / "sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    Victim(MemoryJournal()).answer(0, 0, 0)  # loads what is compiled
    for attempt in range(8):
        child = os.fork()
        if child == 0:
            try:
                _answer_until_killed(tmp_path / "store", log)
            finally:
                os._exit(0)
        time.sleep(0.01 + 0.03 * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    _answer_until_killed(tmp_path / "store", log)
    os.close(log)
    left = {tuple(map(int, line.split())) for line in (tmp_path / "sent").read_text().splitlines()}
    total = Charge()
    for number, round in left:
        total += round_charge(training(number, "whole")[0], round, 0)
    paid = FileStore(tmp_path / "store").spent()
    assert left
    assert total.rho <= paid.rho
    assert BUDGET.allows(paid)


CALLED = ((0, 1, 2, 3), (0, 1, 2), (0, 2, 3))  # what a server that forks runs calls in the same round


@cache
def called_training() -> tuple[Agreement, dict[int, Identity]]:
    return make_agreement(
        members=4, size=4, length=2, bound=1000, rounds=6, policy=Policy(anonymity=2, memory="round"), noise=NOISE,
        roll_call=True, entropy=Drbg(b"called"),
    )  # fmt: skip


def _answer_call(folder: Path, log: int, present: tuple[int, ...]) -> None:
    """In a process of its own, with a memory of its own: answer six rounds for these members."""
    agreement, identities = called_training()
    signatures = {v: agreement.sign(v, one) for v, one in identities.items()}
    store = FileStore(folder)
    for round in range(6):
        client, *mates = [Client(agreement, signatures, v, identities[v], budget=BUDGET) for v in present]
        adverts = tuple(one.receive(Hello(agreement.fingerprint, round)) for one in (client, *mates))
        message = Round(
            fingerprint=agreement.fingerprint, round=round, data=b"", adverts=adverts, groups=((0, 0),), releases=()
        )  # type: ignore[arg-type]
        with suppress(SecAggError):
            task = client.receive(message)
            assert not isinstance(task, Resend)
            data = b"".join(respond(client, store, task, np.array([1, round])))  # type: ignore[arg-type]
            os.write(log, b"%d %d %s\n" % (round, len(present), hashlib.sha256(data).hexdigest().encode()))


def test_forked_runs_of_one_round_get_one_answer_and_share_one_budget(tmp_path: Path) -> None:
    called_training()
    log = os.open(tmp_path / "sent", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    children = []
    for present in CALLED:
        if (child := os.fork()) == 0:
            try:
                _answer_call(tmp_path / "store", log, present)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(log)
    sent = [line.split() for line in (tmp_path / "sent").read_text().splitlines()]
    answers = {round: {answer for when, _, answer in sent if when == round} for round, _, _ in sent}
    assert all(len(found) == 1 for found in answers.values())  # whoever asks in the same round gets the same bytes
    least = flat_charge(called_training()[0].terms, 0, 4, NOISE.colluders)  # what an answer costs at least
    paid = FileStore(tmp_path / "store").spent()
    assert sent
    assert least.times(len(answers)).rho <= paid.rho
    assert BUDGET.allows(paid)
