"""Vectors of agreements and whole groups: runs, and what clients and servers must refuse."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from secagg import Member, Policy, Schedule
from secagg.agreement import Agreement, Terms, successor_terms
from secagg.agreement.origin import Ceremony, commit, commitments_hash, origin_to_bytes, sign_reveal
from secagg.crypto import Segment
from secagg.crypto.keys import LOW_ORDER_POINTS, AgreementKey
from secagg.errors import UsageError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED
from secagg.whole import Advert, Answer, Hello, Message, Release, Round, transcript
from secagg.whole.messages import decode, encode
from tests.secagg.drbg import Drbg
from tests.secagg.vector_case import Case, identity, vector
from tests.vectors.check.session import doubles

SIX = (2, 3, 5, 7, 11, 13)
ME = 2  # the client that receives the bad messages
DATA, CONTEXT = b"model of this round", b"code"
LOOSE = Policy(anonymity=2, max_leverage=1.0, mode=REPORT_EVEN_IF_EXPOSED, memory="round")
M = TypeVar("M", bound=Message)


def make_terms(ids: tuple[int, ...], schedule: Schedule, **changes: Any) -> Terms:
    weights = changes.pop("weights", (1,) * len(ids))
    settings: dict[str, Any] = {
        "name": "vectors",
        "members": tuple(
            Member(v, identity(v).public, name=f"site {v}", weight=w) for v, w in zip(ids, weights, strict=True)
        ),
        "segments": (Segment(shape=(4,), clip=1.0),),
        "schedule": schedule,
        "first_round": 7,
        "last_round": 12,
    }
    return Terms(**{**settings, **changes})


def update_json(terms: Terms, client: int, t: int) -> list[dict[str, Any]]:
    """Floats from -1.25 to 1.25, exact in binary, or integers within the bound."""
    parts: list[dict[str, Any]] = []
    for place, segment in enumerate(terms.segments):
        drawn = np.frombuffer(Drbg(f"vectors/whole/{client}/{t}/{place}".encode())(2 * segment.length), "<u2")
        if segment.bound:
            parts.append({"i64": [int(x) % (2 * segment.bound + 1) - segment.bound for x in drawn]})
        else:
            parts.append({"f64": doubles((drawn / 2.0**15 - 1) * 1.25)})
    return parts


def given_for(terms: Terms) -> dict[str, Any]:
    return {
        "identities": {str(v): identity(v).private.hex() for v in terms.ids},
        "updates": {f"{v}/{t}": update_json(terms, v, t) for v in terms.ids for t in terms.rounds},
    }


class Run:
    """Runs rounds as operations of a case."""

    def __init__(self, case: Case, terms: Terms, budgets: Mapping[int, list[float]] | None = None) -> None:
        self.case, self.terms = case, terms
        given = {v: {"budget": budget} for v, budget in (budgets or {}).items()}
        case.do("agreement.make", {"terms": case.give("terms", terms.to_bytes()), "as": "agreement"})
        case.do("agreement", {"agreement": "agreement"})
        for v in terms.ids:
            case.do("whole.client.new", {"client": v, "agreement": "agreement", **given.get(v, {})})
        case.do("whole.server.new", {"agreement": "agreement"})
        case.mark("started")

    def adverts(self, t: int, absent: Collection[int] = ()) -> None:
        self.case.do("agreement.groups", {"agreement": "agreement", "round": t})
        sent = self.case.do("whole.server.hello", {"round": t, "as": f"{t}/hello"})["messages"]
        for v, name in sent.items():
            if int(v) not in absent:
                advert = f"{t}/advert/{v}"
                self.case.do("whole.client.receive", {"client": v, "message": name, "as": advert})
                self.take(int(v), advert)
        self.case.mark(f"{t} adverts taken")

    def take(self, client: int, message: str, outcome: str = "taken") -> None:
        out = self.case.do("whole.server.receive", {"client": client, "message": message})
        assert out == {"outcome": outcome}, (self.case.name, client, message, out)

    def answers(self, t: int, silent: Collection[int] = (), **more: Any) -> None:
        request = {"round": t, "data": DATA.hex(), "context": CONTEXT.hex(), "as": f"{t}/round", **more}
        sent = self.case.do("whole.server.begin", request)["messages"]
        self.case.mark(f"{t} begun")
        given = [v for v in sent if int(v) not in silent]
        for v in given:
            self.case.do("whole.client.receive", answering(v, sent[v], t, f"{t}/answer/{v}"))
        self.case.mark(f"{t} answers made")
        for v in given:
            self.take(int(v), f"{t}/answer/{v}")
        self.case.mark(f"{t} answers taken")

    def round(self, t: int, absent: Collection[int] = (), silent: Collection[int] = ()) -> Any:
        self.adverts(t, absent)
        self.answers(t, silent)
        out = self.case.do("whole.server.close", {})
        self.case.mark(f"{t} closed")
        return out


def answering(client: str, message: str, t: int, name: str) -> dict[str, Any]:
    update = f"{client.split()[0]}/{t}"
    return {"client": client, "message": message, "update": update, "context": CONTEXT.hex(), "as": name}


def new_run(name: str, about: str, terms: Terms) -> Run:
    return Run(Case(name, about, given=given_for(terms)), terms)


def whole_runs() -> list[Case]:
    """Other cases start from these."""
    return [plain(), two_groupings(), weights_and_segments(), flat_release(), roll_call()]


def plain() -> Case:
    about = "Six members in fixed groups of three, two rounds, nobody is missing; every value behind one answer."
    run = new_run("whole_plain", about, make_terms(SIX, Schedule(name="fixed", size=3)))
    case = run.case
    run.adverts(7)
    run.answers(7)
    answer = got(case, "7/answer/2", Answer)
    case.do("answer-hash", {"agreement": "agreement", "message": "7/answer/2"})
    for name in ("7/hello", "7/advert/2", "7/round/2", "7/answer/2"):
        case.do("message", {"message": name})
    group = next(g for g in agreement_of(case).groups(7).values() if 2 in g)
    for mate in group[1:]:
        shared = {"agreement": "agreement", "mine": "7/advert/2", "theirs": f"7/advert/{mate}", "grouping": 0}
        private = case.given["entropy"]["2"][0]
        out = case.do("group-mask-key", {**shared, "private": private, "data": DATA.hex(), "context": CONTEXT.hex()})
        assert out["context"] == answer.context.hex()
    assert len(case.do("whole.server.close", {})["rows"]) == 2
    case.mark("7 closed")
    assert len(run.round(8)["rows"]) == 2
    for v in (2, 3):
        case.do("whole.client.memory", {"client": str(v)})
    return case


def two_groupings() -> Case:
    about = "Nine members, two groupings; one sends no advert, later one does not answer: their groups are lost."
    ids = (*SIX, 17, 19, 23)
    terms = make_terms(ids, Schedule(name="transversal", size=3, groupings=2), policy=LOOSE, least_groups=2)
    run = new_run("whole_two_groupings", about, terms)
    assert len(run.round(7, absent=[5])["lost"]) == 2
    assert len(run.round(9, silent=[11])["lost"]) == 2
    assert run.round(10, absent=[5, 17, 19], silent=[3, 23, 11, 13])["skipped"]
    run.case.do("whole.client.memory", {"client": "11"})
    return run.case


def weights_and_segments() -> Case:
    about = "Weights, floats and counts in one vector, eight of ten members drawn per round; integers are not weighted."
    ids = (*SIX, 17, 19, 23, 29)
    segments = (Segment(name="model", shape=(2, 2), clip=0.5), Segment(name="cases", shape=(3,), bound=100))
    terms = make_terms(
        ids,
        Schedule(name="atoms", size=4, groupings=1, atom=2),
        segments=segments,
        weights=(1, 2, 3, 4, 5, 1, 2, 3, 4, 5),
        sample=8,
        policy=replace(LOOSE, memory="training"),
    )
    run = new_run("whole_weights_segments", about, terms)
    for t in (7, 8):
        assert len(run.round(t)["rows"]) == 2
    run.case.mark("closed")
    return run.case


def flat_release() -> Case:
    about = "A flat sum of five; in one round a member releases instead of answering and the sum is that of the others."
    terms = make_terms(SIX[:5], Schedule(name="fixed", size=5), policy=Policy(memory="round"))
    run = new_run("whole_flat_release", about, terms)
    case = run.case
    case.do("whole.client.release", {"client": "7", "round": 7, "as": "7/release/7"})
    case.do("whole.client.memory", {"client": "7"})
    run.take(7, "7/release/7")
    case.do("message", {"message": "7/release/7"})
    out = run.round(7)
    assert out["rows"]["0/0"]["members"] == [2, 3, 5, 11]
    assert run.round(8)["rows"]["0/0"]["members"] == [2, 3, 5, 7, 11]
    return case


def roll_call() -> Case:
    about = "A flat sum of those present: first without one that is not there, then without one that is not called."
    terms = make_terms(
        SIX[:5], Schedule(name="fixed", size=5), policy=Policy(memory="round"), roll_call=True, last_round=9
    )
    run = new_run("whole_roll_call", about, terms)
    case = run.case
    run.adverts(7, absent=[7])
    run.answers(7)
    present = [2, 3, 5, 11]
    for mate in (3, 5):
        shared = {"agreement": "agreement", "mine": "7/advert/2", "theirs": f"7/advert/{mate}", "grouping": 0}
        given = {"private": case.given["entropy"]["2"][0], "data": DATA.hex(), "context": CONTEXT.hex()}
        case.do("group-mask-key", {**shared, **given, "present": present})
    assert case.do("whole.server.close", {})["rows"]["0/0"]["members"] == present
    case.do("whole.client.memory", {"client": "2"})
    case.mark("7 closed")
    run.adverts(8)
    run.answers(8, present=[2, 5, 7])
    assert case.do("whole.server.close", {})["rows"]["0/0"]["members"] == [2, 5, 7]
    run.adverts(9, absent=[2, 3, 11])
    run.answers(9)
    assert case.do("whole.server.close", {})["skipped"]
    return case


# --- agreements ------------------------------------------------------------------------------------------


TEN = (*SIX, 17, 19, 23, 29)
DRAWN = {
    "random": (Schedule(name="random", size=3, groupings=2), 0),
    "random, sampled": (Schedule(name="random", size=2, groupings=2), 6),
    "fixed": (Schedule(name="fixed", size=2, groupings=2), 0),
    "fixed, sampled": (Schedule(name="fixed", size=2), 5),
    "transversal": (Schedule(name="transversal", size=3, groupings=3), 0),
    "transversal, sampled": (Schedule(name="transversal", size=2, groupings=2), 7),
    "atoms": (Schedule(name="atoms", size=4, groupings=2, atom=2), 0),
    "atoms, sampled": (Schedule(name="atoms", size=4, atom=2), 4),
}


@vector("agreements", given={"identities": {str(v): identity(v).private.hex() for v in TEN}})
def agreements(case: Case) -> None:
    """The fingerprints, seeds and groups of agreements with every schedule, with and without sampling."""
    for name, (schedule, sample) in DRAWN.items():
        terms = case.give(f"{name}/terms", make_terms(TEN, schedule, sample=sample, policy=LOOSE).to_bytes())
        case.do("agreement.make", {"terms": terms, "as": name, "entropy": name})
        case.do("agreement", {"agreement": name})
        for t in (7, 8, 12):
            case.do("agreement.groups", {"agreement": name, "round": t})
        case.do("agreement.groups", {"agreement": name, "round": 13}, "UsageError")
        if schedule.name in ("fixed", "atoms"):
            kept_groups(case, name)


def kept_groups(case: Case, name: str) -> None:
    """A successor in the groups of before, and terms that cut one of them."""
    before = Agreement.from_bytes(case.session.get(name))
    try:
        made = successor_terms(before, [TEN[0]], name="successor")
    except UsageError:  # everybody is connected
        return
    assert made.keep is not None
    after = f"{name}, kept"
    terms = case.give(f"{after}/terms", made.to_bytes())
    case.do("agreement.make", {"terms": terms, "as": after, "entropy": after})
    case.do("agreement", {"agreement": after})
    for t in (7, 12):
        case.do("agreement.groups", {"agreement": after, "round": t})
    ids = b"".join(v.to_bytes(4, "little") for v in made.keep.dropped)
    count, fewer = len(made.keep.dropped).to_bytes(4, "little"), (len(made.keep.dropped) - 1).to_bytes(4, "little")
    cut = case.give(f"{after}/cut", made.to_bytes().replace(count + ids, fewer + ids[4:]))
    case.do("agreement.make", {"terms": cut, "as": "nothing", "entropy": after}, "WireError")


def agreement_of(case: Case) -> Agreement:
    return Agreement.from_bytes(case.session.get("agreement"))


def got(case: Case, name: str, kind: type[M]) -> M:
    message = decode(case.session.get(name))
    assert isinstance(message, kind)
    return message


def flip(data: bytes, place: int = 0) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def blob(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def unsigned_commitment(terms: Terms, member: int) -> bytes:
    """A ceremony with one bad signature of a commitment; all members sign their contributions after it."""
    secrets = {v: Drbg(f"vectors/unsigned/{v}".encode())(32) for v in terms.ids}
    commitments = tuple(commit(terms, v, identity(v), secrets[v]) for v in terms.ids)
    commitments = tuple(replace(c, signature=flip(c.signature)) if c.member == member else c for c in commitments)
    shown = commitments_hash(terms, commitments)
    reveals = tuple(sign_reveal(terms, v, identity(v), secrets[v], shown) for v in terms.ids)
    return blob(terms.to_bytes()) + origin_to_bytes(Ceremony(commitments, reveals))


@vector(
    "bad_whole_agreements",
    base="whole_plain",
    after="started",
    given={"identities": {"4": identity(4).private.hex()}},
)
def bad_whole_agreements(case: Case) -> None:
    """Agreements that nobody may keep: bytes, seeds that were not drawn by all, missing and foreign signatures."""
    good, terms = case.session.get("agreement"), case.session.get("terms")
    signatures = {str(v): f"agreement/signature/{v}" for v in SIX}
    start, step = 4 + len(terms) + 1 + 4, 4 + 32 + 64
    reveals = start + 6 * step + 4

    def refuse(name: str, data: bytes, ok: str) -> None:
        case.do("agreement", {"agreement": case.give(name, data), "signatures": signatures}, ok)

    members = terms.index(identity(2).public) - 4
    swapped = (
        good[:start] + good[start + step : start + 2 * step] + good[start : start + step] + good[start + 2 * step :]
    )
    leverage = terms.index(np.float64(0.5).tobytes())
    later = replace(Terms.from_bytes(terms), last_round=13).to_bytes()
    wire = {
        "trailing byte": good + b"\x00",
        "one byte short": good[:-1],
        "empty": b"",
        "version 1": blob(b"\x01" + terms[1:]) + good[4 + len(terms) :],
        "unknown section": blob(terms + b"\xff\x01") + good[4 + len(terms) :],
        "no such origin": good[: start - 5] + b"\x02" + good[start - 4 :],
        "huge list": good[: start - 4] + b"\xff" * 4 + good[start:],
        "negative zero": blob(terms[:leverage] + np.float64(-0.0).tobytes() + terms[leverage + 8 :])
        + good[4 + len(terms) :],
        "ids out of order": blob(terms[:members] + b"\x09" + terms[members + 1 :]) + good[4 + len(terms) :],
    }
    for name, data in wire.items():
        refuse(name, data, "WireError")
    peers = {
        "changed terms": blob(later) + good[4 + len(terms) :],
        "commitment not signed": flip(good, start + step - 1),
        "one commitment not signed": unsigned_commitment(Terms.from_bytes(terms), 5),
        "another commitment": flip(good, start + 4),
        "order of commitments": swapped,
        "another contribution": flip(good, reveals + 4),
        "contribution not signed": flip(good, reveals + step - 1),
    }
    for name, data in peers.items():
        refuse(name, data, "PeerError")
    missing = {v: name for v, name in signatures.items() if v != "5"}
    case.do("agreement", {"agreement": "agreement", "signatures": missing}, "PeerError")
    wrong = {**signatures, "5": case.give("wrong signature", flip(case.session.get("agreement/signature/5")))}
    case.do("agreement", {"agreement": "agreement", "signatures": wrong}, "PeerError")
    case.do(
        "whole.client.new",
        {"client": 2, "actor": "2 early", "agreement": "agreement", "signatures": missing},
        "PeerError",
    )
    case.do("agreement.make", {"terms": case.give("other terms", later), "as": "other", "entropy": "other"})
    case.do("whole.client.new", {"client": 4, "agreement": "agreement"}, "UsageError")
    foreign = {str(v): f"other/signature/{v}" for v in SIX}
    case.do("agreement", {"agreement": "agreement", "signatures": foreign}, "PeerError")
    heavy = replace(
        Terms.from_bytes(terms),
        members=make_terms(SIX, Schedule(name="fixed", size=3), weights=(9, 1, 1, 1, 1, 1)).members,
    )
    case.do(
        "agreement.make",
        {"terms": case.give("exposing terms", heavy.to_bytes()), "as": "exposing", "entropy": "exposing"},
        "AgreementRefused",
    )


# --- what a client refuses -------------------------------------------------------------------------------


def signed_advert(case: Case, client: int, t: int, key: bytes, fingerprint: bytes | None = None) -> Advert:
    unsigned = Advert(client, t, key, b"")
    statement = transcript.advert_statement(fingerprint or agreement_of(case).fingerprint, unsigned)
    return replace(unsigned, signature=identity(client).sign(statement))


def with_advert(message: Round, advert: Advert) -> Round:
    return replace(message, adverts=tuple(advert if a.sender == advert.sender else a for a in message.adverts))


def other_key(name: str) -> bytes:
    return AgreementKey.generate(Drbg(name.encode())).public


@vector("bad_whole_hello", base="whole_plain", after="7 answers made")
def bad_whole_hello(case: Case) -> None:
    """A client that has answered round 7 gets bad Hellos; a refused message changes nothing."""
    good = Hello(agreement_of(case).fingerprint, 8)
    before = case.do("whole.client.memory", {"client": "2"})
    bad: dict[str, tuple[Message | bytes, str]] = {
        "another agreement": (replace(good, fingerprint=bytes(32)), "PeerError"),
        "before the first round": (replace(good, round=6), "PeerError"),
        "after the last round": (replace(good, round=13), "PeerError"),
        "answered round": (replace(good, round=7), "PeerError"),
        "trailing byte": (encode(good) + b"\x00", "WireError"),
        "one byte short": (encode(good)[:-1], "WireError"),
        "version 1": (b"\x01" + encode(good)[1:], "WireError"),
        "unknown type": (b"\x02\x25" + encode(good)[2:], "WireError"),
        "empty": (b"", "WireError"),
        "not for a client": (got(case, "7/advert/3", Advert), "PeerError"),
    }
    for name, (message, ok) in bad.items():
        hear(case, name, message, ok)
    assert case.do("whole.client.memory", {"client": "2"}) == before


def hear(case: Case, name: str, message: Message | bytes, ok: str, client: str = "2", t: int = 7) -> None:
    data = message if isinstance(message, bytes) else encode(message)
    case.do("whole.client.receive", answering(client, case.give(f"lie/{name}", data), t, "nothing"), ok)


@vector("bad_whole_not_drawn", base="whole_weights_segments", after="closed")
def bad_whole_not_drawn(case: Case) -> None:
    """A Hello and a Round for a client that is not drawn for the round."""
    agreement = agreement_of(case)
    client, t = next((v, t) for t in (9, 10, 11, 12) for v in agreement.terms.ids if not agreement.groups_of(v, t))
    hear(case, "hello", Hello(agreement.fingerprint, t), "PeerError", str(client), t)
    advert = signed_advert(case, client, t, other_key("not drawn"))
    message = Round(agreement.fingerprint, t, DATA, ((0, 0),), (advert,))
    hear(case, "round", message, "PeerError", str(client), t)
    send(case, client, {"advert": advert})


@vector("bad_whole_rounds", base="whole_plain", after="7 begun")
def bad_whole_rounds(case: Case) -> None:
    """Rounds that a client refuses, or whose only group it leaves out; then it answers the good one."""
    good = got(case, "7/round/2", Round)
    agreement = agreement_of(case)
    mine, mate, last = good.adverts
    assert mine.sender == ME
    release = Release(mate.sender, 7, bytes(64))
    before = case.do("whole.client.memory", {"client": "2"})
    own = other_key("another key of mine")
    bad: dict[str, Round] = {
        "another agreement": replace(good, fingerprint=flip(good.fingerprint)),
        "before the first round": replace(good, round=6),
        "after the last round": replace(good, round=13),
        "no key for this round": replace(good, round=8),
        "adverts out of order": replace(good, adverts=(mine, last, mate)),
        "advert twice": replace(good, adverts=(mine, mate, mate, last)),
        "my advert is missing": replace(good, adverts=(mate, last)),
        "another key of mine": with_advert(good, signed_advert(case, ME, 7, own)),
        "my key of another round": with_advert(good, signed_advert(case, ME, 8, mine.key)),
        "release not signed": replace(good, releases=(release,)),
        "release of mine": replace(good, releases=(signed_release(case, ME, 7),)),
        "release of another round": replace(good, releases=(signed_release(case, mate.sender, 8),)),
        "release of no member": replace(good, releases=(Release(4, 7, bytes(64)),)),
        "releases out of order": replace(
            good, releases=(signed_release(case, last.sender, 7), signed_release(case, mate.sender, 7))
        ),
        "group not listed": replace(good, groups=()),
        "another group": replace(good, groups=((0, 7),)),
        "advert missing": replace(good, adverts=(mine, mate)),
        "advert not signed": with_advert(good, replace(mate, signature=flip(mate.signature))),
        "advert of another agreement": with_advert(good, signed_advert(case, mate.sender, 7, mate.key, bytes(32))),
        "advert of another round": with_advert(good, signed_advert(case, mate.sender, 8, mate.key)),
        "round of an advert changed": with_advert(good, replace(mate, round=8)),
        "key exchanged": with_advert(good, replace(mate, key=other_key("exchanged"))),
        "key not canonical": with_advert(good, signed_advert(case, mate.sender, 7, b"\xff" * 31 + b"\x7f")),
    }
    for place, point in enumerate(sorted(LOW_ORDER_POINTS)):
        bad[f"key of low order {place}"] = with_advert(good, signed_advert(case, mate.sender, 7, point))
    assert agreement.fingerprint == good.fingerprint
    for name, message in bad.items():
        hear(case, name, message, "PeerError")
    data = encode(good)
    hear(case, "trailing byte", data + b"\x00", "WireError")
    hear(case, "one byte short", data[:-1], "WireError")
    assert case.do("whole.client.memory", {"client": "2"}) == before
    case.do("whole.client.receive", answering("2", "7/round/2", 7, "7/answer/2"))


COUNTS = {"i64": [1, 2, 3]}
BAD_UPDATES = {
    "not a number": [{"f64": doubles([0.5, np.nan, 0.0, 0.0])}, COUNTS],
    "infinite": [{"f64": doubles([0.5, -np.inf, 0.0, 0.0])}, COUNTS],
    "above the bound": [{"f64": doubles([0.5, 0.25, 0.0, 0.0])}, {"i64": [1, 101, 3]}],
    "below the bound": [{"f64": doubles([0.5, 0.25, 0.0, 0.0])}, {"i64": [-101, 1, 3]}],
    "vanished": [{"f64": doubles([1e-12, 0.0, 0.0, -1e-11])}, COUNTS],
}


@vector("bad_whole_updates", base="whole_weights_segments", after="7 begun", given={"updates": BAD_UPDATES})
def bad_whole_updates(case: Case) -> None:
    """Updates that cannot be encoded are the application's error: nothing is sent, and a better one is answered."""
    client = next(v for v in agreement_of(case).terms.ids if f"7/round/{v}" in case.session.known)
    request = answering(str(client), f"7/round/{client}", 7, f"7/answer/{client}")
    for name in BAD_UPDATES:
        ok = "EntryVanished" if name == "vanished" else "UsageError"
        case.do("whole.client.receive", {**request, "update": name, "as": "nothing"}, ok)
    case.do("whole.client.receive", request)


@vector("bad_whole_left_out", base="whole_two_groupings", after="7 begun")
def bad_whole_left_out(case: Case) -> None:
    """One of two groups has a bad advert, or a member with a release: it is left out, and the other one is answered."""
    agreement = agreement_of(case)
    client = next(v for v in agreement.terms.ids if len(got_groups(case, v)) == 2)
    good = got(case, f"7/round/{client}", Round)
    other = agreement.groups(7)[good.groups[1]]
    only = next(v for v in other if v not in agreement.groups(7)[good.groups[0]])
    changed = with_advert(good, signed_advert(case, only, 7, other_key("shown to one")))
    name = case.give("lie/another key of a mate", encode(changed))
    case.do("whole.client.receive", answering(str(client), name, 7, "answer to other keys"))
    refused_by_server(case, client, "answer to other keys")
    copy = next(v for v in agreement.terms.ids if v != client and len(got_groups(case, v)) == 2)
    message = got(case, f"7/round/{copy}", Round)
    mate = next(v for v in agreement.groups(7)[message.groups[0]] if v != copy)
    advert = next(a for a in message.adverts if a.sender == mate)
    changed = with_advert(message, replace(advert, signature=flip(advert.signature)))
    name = case.give("lie/unsigned advert of a mate", encode(changed))
    case.do("whole.client.receive", answering(str(copy), name, 7, "answer with one group"))
    assert got(case, "answer with one group", Answer).groups == message.groups[1:]
    refused_by_server(case, copy, "answer with one group")
    third = next(v for v in agreement.terms.ids if v not in (client, copy) and len(got_groups(case, v)) == 2)
    message = got(case, f"7/round/{third}", Round)
    first, second = (agreement.groups(7)[group] for group in message.groups)
    mate = next(v for v in first if v not in second)
    adverts = tuple(advert for advert in message.adverts if advert.sender != mate)
    changed = replace(message, adverts=adverts, releases=(signed_release(case, mate, 7),))
    name = case.give("lie/release where there are several groups", encode(changed))
    case.do("whole.client.receive", answering(str(third), name, 7, "answer without the released"))
    assert got(case, "answer without the released", Answer).groups == message.groups[1:]


def got_groups(case: Case, client: int) -> tuple[tuple[int, int], ...]:
    name = f"7/round/{client}"
    return got(case, name, Round).groups if name in case.session.known else ()


@vector("bad_whole_slots", base="whole_plain", after="7 begun")
def bad_whole_slots(case: Case) -> None:
    """Two processes of one client: one answer per round, and it is sent again byte for byte; no earlier round."""
    case.do("whole.client.copy", {"client": "2", "actor": "2 copy"})
    case.do("whole.client.copy", {"client": "2", "actor": "2 late"})
    case.do("whole.client.receive", answering("2", "7/round/2", 7, "7/answer/2"))
    other = {**answering("2 copy", "7/round/2", 7, "7/answer/2"), "update": "2/8"}
    case.do("whole.client.receive", other)
    case.do("whole.client.receive", {**other, "client": "2"})
    case.do("whole.client.release", {"client": "2 late", "round": 7, "as": "nothing"}, "AlreadyUsed")
    case.do("whole.client.release", {"client": "2", "round": 8, "as": "8/release/2"})
    case.do("whole.client.memory", {"client": "2"})
    hear(case, "earlier round", got(case, "7/round/2", Round), "PeerError")
    hear(case, "hello of a released round", Hello(agreement_of(case).fingerprint, 8), "PeerError")


# --- what a server refuses -------------------------------------------------------------------------------


def signed_release(case: Case, client: int, t: int) -> Release:
    unsigned = Release(client, t, b"")
    statement = transcript.release_statement(agreement_of(case).fingerprint, unsigned)
    return replace(unsigned, signature=identity(client).sign(statement))


def signed_answer(case: Case, answer: Answer, **changes: Any) -> Answer:
    """The answer with other fields, signed again by its sender."""
    changed = replace(answer, **changes)
    rows = transcript.row_hashes(changed.vectors)
    hash = transcript.answer_hash(agreement_of(case).fingerprint, changed, rows)
    return replace(changed, signature=identity(changed.sender).sign(transcript.answer_statement(hash)))


def refused_by_server(case: Case, client: int, name: str, outcome: str = "dropped") -> None:
    out = case.do("whole.server.receive", {"client": client, "message": name})
    assert out == {"outcome": outcome}, (case.name, name, out)


def send(case: Case, client: int, lies: Mapping[str, Message | bytes]) -> None:
    for name, message in lies.items():
        data = message if isinstance(message, bytes) else encode(message)
        refused_by_server(case, client, case.give(f"lie/{name}", data))


@vector("bad_whole_adverts_to_server", base="whole_plain", after="started")
def bad_whole_adverts_to_server(case: Case) -> None:
    """Adverts and releases that a server does not keep."""
    key = other_key("a key")
    good = signed_advert(case, ME, 7, key)
    lies: dict[str, Message | bytes] = {
        "not signed": replace(good, signature=flip(good.signature)),
        "another key": replace(good, key=other_key("another")),
        "another agreement": signed_advert(case, ME, 7, key, bytes(32)),
        "of somebody else": signed_advert(case, 3, 7, key),
        "too far ahead": signed_advert(case, ME, 11, key),
        "before the first round": signed_advert(case, ME, 6, key),
        "not canonical": signed_advert(case, ME, 7, b"\xff" * 31 + b"\x7f"),
        "of low order": signed_advert(case, ME, 7, bytes(32)),
        "trailing byte": encode(good) + b"\x00",
        "version 1": b"\x01" + encode(good)[1:],
        "not for a server": Hello(agreement_of(case).fingerprint, 7),
        "release not signed": Release(ME, 7, bytes(64)),
        "release of somebody else": signed_release(case, 3, 7),
        "release too far ahead": signed_release(case, ME, 11),
        "release after the last round": signed_release(case, ME, 13),
    }
    send(case, ME, lies)
    refused_by_server(case, ME, case.give("good", encode(good)), "taken")
    refused_by_server(case, ME, case.give("three ahead", encode(signed_advert(case, ME, 10, key))), "taken")


@vector("bad_whole_answers_to_server", base="whole_plain", after="7 answers made")
def bad_whole_answers_to_server(case: Case) -> None:
    """Answers that do not count, then the good ones, and a second answer that convicts its sender."""
    good = got(case, "7/answer/2", Answer)
    others = np.concatenate([good.vectors, good.vectors])
    advert = good.adverts[0]
    lies: dict[str, Message | bytes] = {
        "another round": signed_answer(case, good, round=8),
        "another context": signed_answer(case, good, context=flip(good.context)),
        "no group": signed_answer(case, good, groups=(), seen=(), vectors=good.vectors[:0]),
        "another group": signed_answer(case, good, groups=((0, 9),)),
        "one group more": signed_answer(case, good, groups=(*good.groups, (1, 0)), seen=good.seen * 2, vectors=others),
        "other adverts": signed_answer(case, good, seen=(flip(good.seen[0]),)),
        "no adverts hash": signed_answer(case, good, seen=()),
        "a value too few": signed_answer(case, good, vectors=good.vectors[:, :-1]),
        "a row too many": signed_answer(case, good, vectors=others),
        "vectors changed": replace(good, vectors=good.vectors + np.uint32(1)),
        "not signed": replace(good, signature=flip(good.signature)),
        "another answer before": replace(good, previous=flip(good.previous)),
        "advert of somebody else": signed_answer(case, good, adverts=(signed_advert(case, 3, 8, advert.key),)),
        "advert not signed": signed_answer(case, good, adverts=(replace(advert, signature=flip(advert.signature)),)),
        "advert of low order": signed_answer(case, good, adverts=(signed_advert(case, ME, 8, bytes(32)),)),
        "of somebody else": got(case, "7/answer/3", Answer),
        "trailing byte": encode(good) + b"\x00",
        "another count of groups": flip(encode(good), 2 + 4 + 8 + 32),
    }
    send(case, ME, lies)
    for v in SIX:
        refused_by_server(case, v, f"7/answer/{v}", "taken")
    refused_by_server(case, ME, "7/answer/2", "taken")
    second = signed_answer(case, good, vectors=good.vectors + np.uint32(1))
    refused_by_server(case, ME, case.give("a second answer", encode(second)), "taken")
    out = case.do("whole.server.close", {})
    assert (out["blamed"], len(out["rows"])) == ([ME], 2)


@vector("bad_whole_too_large", base="whole_plain", after="7 answers made")
def bad_whole_too_large(case: Case) -> None:
    """A vector out of range: the sum of its group is discarded. A client that is out of time: its group is lost."""
    good = got(case, "7/answer/2", Answer)
    large = signed_answer(case, good, vectors=good.vectors + np.uint32(2**31))
    refused_by_server(case, ME, case.give("large", encode(large)), "taken")
    for v in SIX[1:]:
        refused_by_server(case, v, f"7/answer/{v}", "taken")
    assert len(case.do("whole.server.close", {})["lost"]) == 1
    refused_by_server(
        case, 3, case.give("late", encode(replace(got(case, "7/answer/3", Answer), signature=bytes(64)))), "taken"
    )
    refused_by_server(case, 3, case.give("not a message", b"\x02\x7f"))


@vector("bad_whole_omitted_group", base="whole_two_groupings", after="7 answers made")
def bad_whole_omitted_group(case: Case) -> None:
    """An answer that omits a complete group does not count, although its other group is right."""
    client = next(v for v in agreement_of(case).terms.ids if len(got_groups(case, v)) == 2)
    good = got(case, f"7/answer/{client}", Answer)
    for kept in (0, 1):
        part = slice(kept, kept + 1)
        bad = signed_answer(case, good, groups=good.groups[part], seen=good.seen[part], vectors=good.vectors[part])
        send(case, client, {f"only group {kept}": bad})
    refused_by_server(case, client, f"7/answer/{client}", "taken")


@vector("bad_whole_releases", base="whole_flat_release", after="7 begun")
def bad_whole_releases(case: Case) -> None:
    """A released client is not asked, and its answer does not count; a release after an answer convicts its sender."""
    good = got(case, "7/round", Round)
    hear(case, "round for a released client", replace(good, releases=()), "PeerError", client="7")
    released = {r.sender for r in good.releases}
    assert released == {7}
    five = tuple(signed_release(case, v, 7) for v in (3, 5, 7))
    hear(case, "too many releases", replace(good, releases=five), "PeerError")
    hear(case, "release of no member", replace(good, releases=(*good.releases, Release(99, 7, bytes(64)))), "PeerError")
    hear(case, "release missing", replace(good, releases=()), "PeerError")
    answer = Answer(
        sender=7, round=7, context=transcript.context_hash(DATA, CONTEXT), groups=((0, 0),),
        seen=(transcript.adverts_hash(good.fingerprint, 7, (0, 0), good.adverts),), previous=bytes(32), adverts=(),
        signature=bytes(64), vectors=np.ones((1, 4), np.uint32),
    )  # fmt: skip
    send(case, 7, {"answer to a released round": signed_answer(case, answer)})
    for v in (2, 3, 5, 11):
        case.do("whole.client.receive", answering(str(v), "7/round", 7, f"7/answer/{v}"))
        refused_by_server(case, v, f"7/answer/{v}", "taken")
    refused_by_server(case, 3, case.give("release after an answer", encode(signed_release(case, 3, 7))), "taken")
    case.do("whole.client.release", {"client": "3", "round": 7, "as": "nothing"}, "AlreadyUsed")
    case.do("whole.client.release", {"client": "3", "round": 13, "as": "nothing"}, "UsageError")
    out = case.do("whole.server.close", {})
    assert (out["blamed"], out["rows"]["0/0"]["members"]) == ([3], [2, 3, 5, 11])


FLAT_FOR_ALL_ROUNDS = make_terms(SIX[:3], Schedule(name="fixed", size=3))


@vector("bad_whole_release_refused", given=given_for(FLAT_FOR_ALL_ROUNDS))
def bad_whole_release_refused(case: Case) -> None:
    """A flat sum with memory = "training" has no releases: neither clients nor the server accept one."""
    run = Run(case, FLAT_FOR_ALL_ROUNDS)
    case.do("whole.client.release", {"client": "3", "round": 7, "as": "nothing"}, "UsageError")
    send(case, 3, {"release": signed_release(case, 3, 7)})
    run.adverts(7)
    request = {"round": 7, "data": DATA.hex(), "context": CONTEXT.hex(), "as": "7/round"}
    case.do("whole.server.begin", request)
    message = got(case, "7/round", Round)
    hear(case, "round with a release", replace(message, releases=(signed_release(case, 3, 7),)), "PeerError")


@vector("bad_whole_roll_call", base="whole_roll_call", after="7 begun")
def bad_whole_roll_call(case: Case) -> None:
    """Sets that a client does not answer for; a second set; answers of a member that is not present."""
    good = got(case, "7/round", Round)
    adverts = {advert.sender: advert for advert in good.adverts}
    stranger = signed_advert(case, 7, 7, other_key("not present"))
    two = tuple(adverts[v] for v in (2, 3))
    hear(case, "too few", replace(good, adverts=two), "PeerError")
    hear(case, "without me", replace(good, adverts=tuple(adverts[v] for v in (3, 5, 11))), "PeerError")
    nobody = Advert(99, 7, stranger.key, stranger.signature)
    hear(case, "a stranger", replace(good, adverts=(*good.adverts, nobody)), "PeerError")
    hear(case, "a release", replace(good, releases=(signed_release(case, 7, 7),)), "PeerError")
    unsigned = replace(stranger, signature=bytes(64))
    order = tuple(sorted((*good.adverts, unsigned), key=lambda advert: advert.sender))
    hear(case, "a member whose advert is not signed", replace(good, adverts=order), "PeerError")
    case.do("whole.client.release", {"client": "2", "round": 7, "as": "nothing"}, "UsageError")
    send(case, 3, {"release to the server": signed_release(case, 3, 7)})
    case.do("whole.client.receive", answering("2", "7/round", 7, "7/answer/2"))
    less = case.give("lie/another set", encode(replace(good, adverts=tuple(adverts[v] for v in (2, 3, 5)))))
    again = case.do("whole.client.receive", answering("2", less, 7, "7/answer/2"))
    assert again == {"message": "7/answer/2"}
    late = case.give("lie/another set first", encode(replace(good, adverts=tuple(adverts[v] for v in (3, 5, 11)))))
    case.do("whole.client.receive", answering("3", late, 7, "7/other answer/3"))
    refused_by_server(case, 3, "7/other answer/3")
    answer = got(case, "7/answer/2", Answer)
    send(case, 7, {"answer of an absent member": signed_answer(case, replace(answer, sender=7, adverts=()))})
    refused_by_server(case, 2, "7/answer/2", "taken")
    out = case.do("whole.server.close", {})
    assert (out["blamed"], out["rows"]) == ([], {})


UNEQUAL = make_terms(
    SIX[:4],
    Schedule(name="fixed", size=4),
    weights=(3, 3, 1, 1),
    policy=Policy(anonymity=2, max_leverage=0.5, memory="round"),
)


@vector("bad_whole_release_leverage", given=given_for(UNEQUAL))
def bad_whole_release_leverage(case: Case) -> None:
    """Without the released member, one weight would dominate: nobody is left out, and nothing opens."""
    run = Run(case, UNEQUAL)
    case.do("whole.client.release", {"client": "3", "round": 7, "as": "7/release/3"})
    run.take(3, "7/release/3")
    run.adverts(7)
    request = {"round": 7, "data": DATA.hex(), "context": CONTEXT.hex(), "as": "7/round"}
    assert case.do("whole.server.begin", request) == {"messages": {}}
    assert case.do("whole.server.close", {})["skipped"]
    adverts = tuple(got(case, f"7/advert/{v}", Advert) for v in (2, 5, 7))
    releases = (got(case, "7/release/3", Release),)
    hear(case, "round", Round(agreement_of(case).fingerprint, 7, DATA, ((0, 0),), adverts, releases), "PeerError")
