"""Vectors of whole runs: every message, and for some runs every intermediate value."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from secagg import Plan, Policy, Schedule, Stage, reference
from secagg.crypto import Segment
from secagg.crypto.keys import AgreementKey
from secagg.protocol import client_state, transcript
from secagg.protocol.client_state import ClientMemory
from secagg.protocol.messages import Dealing, Unmasking
from secagg.protocol.wire import decode, encode
from tests.secagg.drbg import Drbg
from tests.secagg.vector_case import Case, identity, make_plan, vector
from tests.vectors.check.session import doubles, ring, update_of

FIVE = (2, 3, 5, 7, 11)  # not 1 to 5: a Shamir index is a place in the roster, not an id
FLAT = Schedule(name="random", size=5)
STAGES = (Stage.KEYS, Stage.SHARES, Stage.INPUTS, Stage.CONSISTENCY, Stage.UNMASKING)
UP = ("advert", "dealing", "masked", "consistency", "unmasking")
DOWN = ("", "keylist", "bundle", "survivors", "signatures")
Tamper = Callable[[Case, int, str], str]


def flat_run() -> Case:
    """The run that most other cases start from."""
    about = "Five clients, one grouping, nobody leaves: Bonawitz et al. 2017, with every value behind it."
    return whole_run("n5_flat", about, flat_plan(), values=FIVE)


def complete_runs() -> list[Case]:
    flat = flat_run()
    dropouts = [drop_at(flat, stage) for stage in STAGES]
    return [flat, *dropouts, two_groupings(), transversal(), atoms(), left_out(), sparse(), segments()]


def flat_plan(**changes: Any) -> Plan:
    return make_plan(FIVE, FLAT, **changes)


def float_update(client: int, length: int) -> dict[str, str]:
    """Floats from -1.25 to 1.25 (so that some are clipped at 1), exact in binary."""
    drawn = np.frombuffer(Drbg(f"vectors/update/{client}".encode())(2 * length), "<u2")
    return {"f64": doubles((drawn / 2.0**15 - 1) * 1.25)}


def integer_update(client: int, length: int, bound: int) -> dict[str, list[int]]:
    drawn = np.frombuffer(Drbg(f"vectors/update/{client}".encode())(4 * length), "<u4")
    return {"i64": [int(value) % (2 * bound + 1) - bound for value in drawn]}


def flat_update(plan: Plan, client: int) -> dict[str, Any]:
    """The update of a plan without segments."""
    if plan.bound is None:
        return float_update(client, plan.length)
    return integer_update(client, plan.length, plan.bound)


def part_of(client: int, place: int, segment: Segment) -> dict[str, Any]:
    """One segment of a client's update, with clients apart by a thousand."""
    if segment.bound is None:
        return float_update(1000 * place + client, segment.length)
    return integer_update(1000 * place + client, segment.length, segment.bound)


def given_for(plan: Plan) -> dict[str, Any]:
    return {
        "identities": {str(v): identity(v).private.hex() for v in plan.ids},
        "updates": {
            str(v): [part_of(v, place, segment) for place, segment in enumerate(plan.segments)] or flat_update(plan, v)
            for v in plan.ids
        },
    }


class Run:
    """Runs the stages as operations of a case, from the start or from the end of the case's base."""

    def __init__(self, case: Case, plan: Plan, *, values: Collection[int] = ()) -> None:
        self.case, self.plan, self.values = case, plan, values
        self.inbox: dict[int, str] = dict.fromkeys(plan.ids, "")
        self.tag = "then/" if case.base else ""  # so that names differ from those of the base
        if case.base:
            sent = [step for step in case.before if step["op"] == "server.advance"]
            self.inbox = {int(v): name for v, name in sent[-1]["out"]["messages"].items()}
            return
        case.do("plan", {"plan": case.give("plan", plan.to_bytes())})
        for v in plan.ids:
            case.do("client.new", {"client": v, "round": plan.round})
        case.do("server.new", {"plan": "plan"})
        case.mark("started")

    def answers(self, stage: Stage, silent: Collection[int] = ()) -> dict[int, str]:
        """Let every client that got a message answer it; return the names of the answers."""
        made = {}
        for v in [v for v in self.inbox if v not in silent]:
            name = f"{self.tag}{UP[stage]}/{v}"
            self.answer(v, stage, name)
            made[v] = name
            if v in self.values and stage < Stage.UNMASKING:
                self.case.do("client.values", {"client": str(v), "message": name})
            elif v in self.values:
                self.case.do("unmasking.signed", {"plan": "plan", "message": name})
        self.case.mark(f"{UP[stage]} made")
        return made

    def answer(self, v: int, stage: Stage, name: str) -> None:
        if stage is Stage.KEYS:
            self.case.do("client.hello", {"client": str(v), "as": name})
            return
        extra = {"context": self.plan.context.hex()} if stage is Stage.SHARES else {}
        extra |= {"update": str(v)} if stage is Stage.INPUTS else {}
        self.case.do("client.receive", {"client": str(v), "message": self.inbox[v], "as": name, **extra})

    def take(self, answers: Mapping[int, str], outcome: str = "counted") -> None:
        for v, name in answers.items():
            out = self.case.do("server.receive", {"client": v, "message": name})
            assert out == {"outcome": outcome}, (v, name, out)

    def advance(self, stage: Stage, ok: bool | str = True) -> None:
        """Close a stage."""
        self.case.mark(f"{UP[stage]} taken")
        if stage is Stage.UNMASKING:
            if self.values:
                self.case.do("server.values", {})
            self.case.do("server.advance", {"as": "nothing"}, ok)
            return
        out = self.case.do("server.advance", {"as": self.tag + DOWN[stage + 1]}, ok)
        if ok is True:
            self.inbox = {int(v): name for v, name in out["messages"].items()}
            self.case.mark(f"{DOWN[stage + 1]} sent")

    def rest(
        self,
        stages: Sequence[Stage],
        *,
        drop: Mapping[int, Stage] | None = None,
        tamper: Mapping[tuple[Stage, int], Tamper] | None = None,
    ) -> Any:
        """Run these stages to the end. Clients in `drop` stop answering; `tamper` changes messages."""
        for stage in stages:
            answers = self.answers(stage, [v for v, when in (drop or {}).items() if when <= stage])
            self.take(
                {
                    v: tamper[stage, v](self.case, v, name) if (stage, v) in (tamper or {}) else name
                    for v, name in answers.items()
                }
            )
            self.advance(stage)
        result = self.case.do("server.result", {})
        check_sums(self.plan, self.case, result)
        return result


def whole_run(
    name: str,
    about: str,
    plan: Plan,
    *,
    drop: Mapping[int, Stage] | None = None,
    values: Collection[int] = (),
    hashed: tuple[str, ...] = (),
) -> Case:
    """A complete run without a base."""
    case = Case(name, about, given=given_for(plan))
    case.hashed = hashed
    Run(case, plan, values=values).rest(STAGES, drop=drop)
    first = next(v for v in plan.ids if v not in (drop or {}))
    case.do("client.records", {"client": first})
    case.do("client.state", {"client": str(first)})
    return case


def check_sums(plan: Plan, case: Case, result: Any) -> None:
    """Compare each opened total with the sum of its members' encoded updates, without the protocol."""
    for opened in result["rows"].values():
        total = np.zeros(plan.length, np.uint32)
        for v in opened["members"]:
            update = update_of(plan.encoding.segments, case.session.given["updates"][str(v)])
            total += plan.encoding.encode(update, weight=plan.relative_weight(v))[0]
        assert (ring(opened["total"]) == total).all()


def drop_at(flat: Case, stage: Stage) -> Case:
    name = f"n5_drop_at_{stage.name.lower()}"
    about = f"As n5_flat, but client 7 does not answer in stage {int(stage)} ({stage.name})."
    if stage is Stage.KEYS:
        return whole_run(name, about, flat_plan(), drop={7: stage})
    case = Case(name, about, base=flat, first=f"{DOWN[stage]} sent")
    Run(case, flat_plan()).rest(STAGES[stage:], drop={7: stage})
    return case


def two_groupings() -> Case:
    plan = make_plan(
        (1, 2, 4, 8, 16, 32),
        Schedule(name="random", size=3, groupings=2),
        weights=(10, 20, 30, 10, 15, 25),
        colluders=1,
        policy=Policy(min_survivors=2, anonymity=2, max_leverage=1.0),
    )
    return whole_run(
        "n6_two_groupings_weights",
        "Six clients in two random groupings of threes, weighted; client 4 leaves after dealing. The audit "
        "keeps closed what would expose somebody.",
        plan,
        drop={4: Stage.INPUTS},
        values=(1, 8),
    )


def crossed_plan() -> Plan:
    return make_plan(
        tuple(range(100, 109)),
        Schedule(name="transversal", size=3, groupings=2),
        colluders=2,
        policy=Policy(max_leverage=0.9),
        weights=tuple(range(1, 10)),
        round=11,
    )


def transversal() -> Case:
    about = "Nine clients, two transversal groupings, weights 1 to 9. The audit keeps two rows closed."
    return whole_run("n9_transversal_weights", about, crossed_plan())


def atoms() -> Case:
    plan = make_plan(
        tuple(range(12)),
        Schedule(name="atoms", size=6, groupings=3, atom=3),
        policy=Policy(anonymity=3, max_leverage=0.8),
        weights=(3, 1, 2) * 4,
        length=3,
        round=8,
    )
    gone = plan.atoms[1][0]
    return whole_run(
        "n12_atoms_weights",
        f"Twelve clients in atoms of three, three groupings, weighted; client {gone} leaves after dealing, "
        "and with it its whole atom, which would otherwise be too small to hide the others.",
        plan,
        drop={gone: Stage.INPUTS},
        hashed=("bundle/",),
    )


def left_out() -> Case:
    plan = make_plan(
        tuple(range(10, 17)), Schedule(name="random", size=3, groupings=1), colluders=2, clip=None, bound=50
    )
    return whole_run(
        "n7_left_out",
        "Seven clients in threes: one is left out at random. It deals, holds shares, signs and unmasks, and "
        "sends no vector. Client 16 leaves after its vector arrived, so that its seed is rebuilt.",
        plan,
        drop={16: Stage.CONSISTENCY},
    )


def sparse() -> Case:
    plan = make_plan(
        tuple(range(8)), Schedule(name="random", size=8), degree=4, threshold=3, colluders=1, clip=None, bound=100
    )
    return whole_run(
        "n8_sparse",
        "Eight clients on a circle with four neighbours each (semi-honest server only); client 6 leaves after dealing.",
        plan,
        drop={6: Stage.INPUTS},
    )


def segments() -> Case:
    plan = make_plan(
        (1, 2, 4, 8, 16, 32),
        Schedule(name="random", size=3, groupings=1),
        weights=(10, 20, 30, 10, 15, 25),
        colluders=1,
        length=8,
        clip=None,
        segments=(
            Segment(name="layer", shape=(2, 3), clip=1.0),
            Segment(name="votes", shape=(), bound=7),
            Segment(name="large", shape=(1,), clip=4096.0),
        ),
        policy=Policy(max_leverage=1.0),
    )
    return whole_run(
        "n6_segments",
        "Six weighted clients in threes; vectors have three segments, each with its own scale: floats up to 1 and "
        "to 4096, and integers. Client 8 leaves after its vector arrived.",
        plan,
        drop={8: Stage.CONSISTENCY},
        hashed=("bundle/",),
    )


AUDITED: tuple[tuple[Schedule, int, Policy, bool], ...] = (
    (Schedule(name="random", size=3, groupings=2), 9, Policy(anonymity=2, max_leverage=1.0), False),
    (Schedule(name="random", size=3, groupings=3), 9, Policy(anonymity=2, max_leverage=1.0), False),
    (Schedule(name="random", size=4, groupings=2), 12, Policy(anonymity=3, max_leverage=1.0), False),
    (Schedule(name="random", size=4, groupings=2), 12, Policy(anonymity=3, max_leverage=0.6), True),
    (Schedule(name="random", size=4, groupings=3), 12, Policy(anonymity=4, max_leverage=0.8), False),
    (Schedule(name="random", size=5, groupings=2), 11, Policy(min_survivors=4, anonymity=2), True),
    (Schedule(name="fixed", size=4, groupings=2), 8, Policy(anonymity=2), False),
    (Schedule(name="transversal", size=3, groupings=3), 12, Policy(anonymity=2, max_leverage=0.95), False),
    (Schedule(name="atoms", size=4, groupings=3, atom=2), 12, Policy(anonymity=2), True),
    (Schedule(name="random", size=3, groupings=2), 9, Policy(mode="report-even-if-exposed"), False),
)


@vector("audits")
def audits(case: Case) -> None:
    """Which rows may be opened: schedules, policies, weights and survivor sets."""
    for place, (schedule, n, policy, weighted) in enumerate(AUDITED):
        weights = tuple(1 + 3 * v % 7 for v in range(n)) if weighted else ()
        plan = make_plan(tuple(range(n)), schedule, policy=policy, weights=weights, colluders=0)
        name = case.give(f"plan/{place}", plan.to_bytes())
        for gone in ((), (0,), (1, 5), (2, 3, 7)):
            case.do("audit", {"plan": name, "survivors": [v for v in plan.ids if v not in gone]})


def damaged_box(case: Case, v: int, name: str) -> str:
    """Change one bit of the first box of a dealing, so that it does not open."""
    dealing = decode(case.session.get(name))
    assert isinstance(dealing, Dealing)
    boxes = bytes([dealing.boxes[0] ^ 1]) + dealing.boxes[1:]
    return case.give(f"{name}/damaged", encode(replace(dealing, boxes=boxes)))


def dealt(case: Case, threes: str) -> Run:
    """The run after stage 1, with the dealing of client 3 replaced."""
    run = Run(case, flat_plan())
    run.take({v: threes if v == 3 else f"dealing/{v}" for v in FIVE})
    run.advance(Stage.SHARES)
    return run


@vector("n5_disputed_box", after="dealing made")
def disputed_box(case: Case) -> None:
    """As n5_flat, but client 3's box for client 2 does not open. Client 2 names the disputed pair and goes
    on; nobody is blamed, and the sum is exact.
    """
    result = dealt(case, damaged_box(case, 3, "dealing/3")).rest(STAGES[2:])
    assert (list(result["rows"]), result["blamed"]) == (["0/0"], [])


def false_box(case: Case, v: int, name: str) -> str:
    """Change the first box of a dealing: it opens, but its share does not match the signed hash."""
    dealing = decode(case.session.get(name))
    assert isinstance(dealing, Dealing)
    actor = case.session.actors[str(v)]
    memory, plan = actor.memory(), actor.machine.plan
    peer = memory.adverts[0]
    agreed = AgreementKey.from_private(memory.channel).agree(peer.channel)
    size = len(dealing.boxes) // (len(memory.adverts) - 1)
    address = reference.box_address(plan.hash, v, peer.sender)
    content = bytearray(reference.unseal(agreed, address, dealing.boxes[:size]))
    content[32] ^= 1
    entropy = Drbg(b"vectors/false box")
    sealed = reference.seal(agreed, address, bytes(content), entropy)
    return case.give(f"{name}/false", encode(replace(dealing, boxes=sealed + dealing.boxes[size:])))


@vector("n5_disputed_share", after="dealing made")
def disputed_share(case: Case) -> None:
    """As n5_flat, but client 3 seals for client 2 a share that does not match the hash it signed: a disputed
    pair again.
    """
    result = dealt(case, false_box(case, 3, "dealing/3")).rest(STAGES[2:])
    assert (list(result["rows"]), result["blamed"]) == (["0/0"], [])


def false_unmasking(case: Case, v: int, name: str) -> str:
    """Change one bit of the first share and sign the message again."""
    message = decode(case.session.get(name))
    assert isinstance(message, Unmasking)
    seeds = bytes([message.seeds[0] ^ 1]) + message.seeds[1:]
    changed = replace(message, seeds=seeds)
    plan = case.session.server.plan
    signature = identity(v).sign(transcript.unmasking_statement(plan.hash, changed))
    return case.give(f"{name}/false", encode(replace(changed, signature=signature)))


@vector("n5_false_share", after="signatures sent")
def false_share(case: Case) -> None:
    """As n5_flat, but client 11 signs a wrong share of client 2 in stage 4. It is an erasure: the others'
    shares are enough, the sum is exact, and client 11 is blamed.
    """
    result = Run(case, flat_plan()).rest(STAGES[4:], tamper={(Stage.UNMASKING, 11): false_unmasking})
    assert (list(result["rows"]), result["blamed"]) == (["0/0"], [11])


@vector("n5_cheating_dealer", after="dealing made")
def cheating_dealer(case: Case) -> None:
    """As n5_flat, but client 3 commits to a seed that is not the one it shares. The shares of t holders
    rebuild something else, so the row is lost, not wrong, and its own shares convict client 3.
    """
    plan = flat_plan()
    case.do("client.save", {"client": "3", "as": "state/3"})
    memory: ClientMemory = client_state.restore(case.session.get("state/3"))
    commitment = transcript.seed_commitment(plan.hash, 3, 0, Drbg(b"vectors/another seed")(32))
    mine = replace(memory.mine[0], commitments=(commitment,))
    memory.mine = (mine,)
    case.give("state/3/cheating", client_state.save(memory))
    case.do("client.restore", {"client": "3", "bytes": "state/3/cheating"})
    honest = decode(case.session.get("dealing/3"))
    assert isinstance(honest, Dealing)
    advert = next(advert for advert in memory.adverts if advert.sender == 3)
    signature = identity(3).sign(transcript.dealing_statement(plan.hash, advert, mine))
    dealing = replace(honest, commitments=mine.commitments, signature=signature)
    result = dealt(case, case.give("dealing/3/cheating", encode(dealing))).rest(STAGES[2:])
    assert (result["rows"], result["lost"], result["blamed"]) == ({}, ["0/0"], [3])


@vector("n5_resumed", after="keylist sent")
def resumed(case: Case) -> None:
    """As n5_flat, but client 2 is saved and restored before every message, the server twice, and the stage-3
    answers are lost once: the same Survivors again give the same signatures.
    """
    plan = flat_plan()
    run = Run(case, plan)
    for stage in STAGES[1:]:
        state, saved = f"state/{stage.name}/2", f"state/{stage.name}/server"
        case.do("client.save", {"client": "2", "as": state})
        case.do("client.restore", {"client": "2", "bytes": state})
        if stage in (Stage.INPUTS, Stage.UNMASKING):
            case.do("server.save", {"as": saved})
            case.do("server.restore", {"bytes": saved})
        answers = run.answers(stage)
        if stage is Stage.CONSISTENCY:
            out = case.do("server.outbox", {"as": "then/survivors"})
            run.inbox = {int(v): name for v, name in out["messages"].items()}
            assert run.answers(stage) == answers
        run.take(answers)
        run.advance(stage)
    check_sums(plan, case, case.do("server.result", {}))
    case.do("client.records", {"client": 2})


@vector("n5_late_answers", after="signatures sent")
def late_answers(case: Case) -> None:
    """As n5_flat, but in stage 4 only three of five answer, and the threshold is four: TooFewSurvivors, and
    the run stays open. Then the fourth answers: a run is resumed, not repeated.
    """
    plan = flat_plan()
    run = Run(case, plan)
    answers = run.answers(Stage.UNMASKING, silent=(5,))
    late = {7: answers.pop(7)}
    run.take(answers)
    run.advance(Stage.UNMASKING, "TooFewSurvivors")
    run.take(late)
    run.advance(Stage.UNMASKING)
    check_sums(plan, case, case.do("server.result", {}))


@vector("n5_too_few", after="bundle sent")
def too_few(case: Case) -> None:
    """As n5_flat, but three of five send masked inputs, and the threshold is four: the run has failed,
    nothing is revealed, and every later call is refused.
    """
    run = Run(case, flat_plan())
    run.take(run.answers(Stage.INPUTS, silent=(5, 7)))
    run.advance(Stage.INPUTS, "TooFewSurvivors")
    case.do("server.advance", {"as": "nothing"}, "UsageError")
    case.do("server.result", {}, "UsageError")
    case.do("server.save", {"as": "nothing"}, "UsageError")


@vector("n5_duplicates", after="bundle sent")
def duplicates(case: Case) -> None:
    """As n5_flat, but every message to the server comes twice, and once more after its stage: duplicates and
    late messages are ignored, and nobody is dropped for them.
    """
    plan = flat_plan()
    run = Run(case, plan)
    before = {v: f"dealing/{v}" for v in plan.ids}
    for stage in STAGES[2:]:
        answers = run.answers(stage)
        run.take(answers)
        run.take(answers, "ignored")
        run.take(before, "ignored")
        run.advance(stage)
        before = answers
    run.take(before, "ignored")
    check_sums(plan, case, case.do("server.result", {}))
