"""Bad arguments fail when they are given: with a UsageError that says what was expected, and never later."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secagg
import secagg.whole as whole
from secagg import (
    Client,
    FileJournal,
    Identity,
    Member,
    MemoryJournal,
    Plan,
    Policy,
    Schedule,
    Server,
    Stage,
    UsageError,
    audit,
    decode,
    encode,
    secure_mean,
    secure_sum,
)
from secagg.agreement import Agreement, Commitment, Terms, commit, default_colluders, default_threshold, reveal
from secagg.crypto import (
    AgreementKey,
    FixedPoint,
    Integers,
    Segment,
    Share,
    add_masks,
    box_keys,
    combine,
    hkdf,
    mask,
    seal,
    split,
    unseal,
    use_backend,
    verify,
)
from secagg.exposure import Beacon, SeedCeremony, keep_whole_atoms, revealed, shuffled
from secagg.simulation import agree_on, clear, make_agreement, make_identities, make_roster, run
from tests.secagg import wrong_types

AGREED, IDENTITIES = make_agreement(members=4, size=4, length=2, bound=9, groups="survivors")
ROSTER = AGREED.terms.members
SCHEDULE = Schedule(name="random", size=4)
PLAN: dict[str, Any] = {"training_id": bytes(32), "training_seed": bytes(32), "round": 0, "roster": ROSTER}
PLAN |= {"length": 2, "schedule": SCHEDULE, "bound": 9}
THE_PLAN = AGREED.plan(0, 0, b"")
INPUTS = {v: np.array([v, 1]) for v in range(4)}
AGREEMENT, MEMBERS = make_agreement(members=6, size=3, length=2, clip=1.0)
SIGNATURES = {v: AGREEMENT.sign(v, MEMBERS[v]) for v in MEMBERS}
TERMS: dict[str, Any] = {"name": "a", "members": AGREEMENT.terms.members, "segments": AGREEMENT.terms.segments}
TERMS |= {"schedule": AGREEMENT.terms.schedule, "last_round": 3}
CEREMONY = SeedCeremony(training_id=b"x", roster=(1, 2))
ADVERT = Client(0, IDENTITIES[0], AGREED, 0, MemoryJournal()).hello()
KEY = box_keys([bytes(32)], b"run", [(1, 2)])[0]
FLOATS, WHOLE = FixedPoint(clients=3, clip=1.0), Integers(clients=3, bound=5)
TOTAL = np.zeros(2, np.uint32)


def client(**changes: Any) -> Client:
    given: dict[str, Any] = {"me": 0, "identity": IDENTITIES[0], "agreement": AGREED, "round": 0}
    return Client(**{**given, "journal": MemoryJournal(), **changes})


def whole_client(**changes: Any) -> whole.Client:
    given: dict[str, Any] = {"agreement": AGREEMENT, "signatures": SIGNATURES, "me": 0, "identity": MEMBERS[0]}
    return whole.Client(**{**given, **changes})


def enter(name: Any) -> None:
    with use_backend(name):
        pass


# What is called, its good arguments, and for each argument what may not be given, with words of the error.
CALLS: dict[str, tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, tuple[str, list[Any]]]]] = {
    "Member": (
        Member,
        {"id": 1, "identity": bytes(32)},
        {
            "id": ("id", [None, "1", 1.5, True, -1, 2**32]),
            "identity": ("identity|public key", [None, "text", 5, b"short"]),
            "name": ("name: expected str", [None, 5, b"name"]),
            "weight": ("weight", [None, 0, -1, 1.5, 2**32]),
        },
    ),
    "Plan": (
        Plan,
        PLAN,
        {
            "roster": ("roster", [None, 5, "text", [None], [(0, bytes(32))]]),
            "schedule": ("schedule: expected Schedule", [None, "random", {"size": 4}]),
            "policy": ("policy: expected Policy", [None, 3, "enforce"]),
            "round": ("round", [None, "0", 0.0, True, -1, 2**63]),
            "length": ("length", [None, 0, 2.5, "2", 2**31]),
            "context": ("context: expected bytes", [None, "model", 7]),
            "training_id": ("training_id", [None, "id", bytes(31)]),
            "training_seed": ("training_seed", [None, 0, bytes(33)]),
            "weights": ("weights", [None, 5, "1111", (1, 1, 1, 1.5), (1, 1), (0, 1, 1, 1)]),
            "threshold": ("threshold", ["3", 2.5, 0, 5]),
            "colluders": ("colluders", ["1", 1.5, -1, 4]),
            "segments": ("segments", [None, 5, ["weights"]]),
        },
    ),
    "Plan with clip": (Plan, {**PLAN, "bound": None, "clip": 1.0}, {"clip": ("clip", ["1", float("nan"), 1j, True])}),
    "Plan.from_bytes": (Plan.from_bytes, {"data": THE_PLAN.to_bytes()}, {"data": ("bytes", [None, "text", 5, [1]])}),
    "Plan.peers": (THE_PLAN.peers, {"client": 0}, {"client": ("client", [None, "0", 9, -1, [0]])}),
    "Plan.group": (THE_PLAN.group, {"group": (0, 0)}, {"group": ("group", [None, 0, (0, 9), (0,), "00", (0, None)])}),
    "Plan.audit": (THE_PLAN.audit, {"survivors": [0, 1, 2]}, {"survivors": ("survivors", [None, 3, "012", [None]])}),
    "default_colluders": (default_colluders, {"n": 9}, {"n": ("n: expected", [None, "9", 9.0, -1])}),
    "default_threshold": (default_threshold, {"n": 9, "colluders": 1}, {"colluders": ("colluders", [None, 1.5])}),
    "Client": (
        client,
        {},
        {
            "me": ("me|roster", [None, "0", 9, -1, 0.0]),
            "identity": ("identity: expected Identity", [None, bytes(32)]),
            "agreement": ("agreement: expected an Agreement", [None, THE_PLAN, {"colluders": 1}]),
            "round": ("round", [None, "0", 0.0, -1, 2**63]),
            "journal": ("journal: expected a Journal", [None, "folder", MemoryJournal, {}]),
            "entropy": ("entropy: expected", [None, b"seed", lambda count: b"", lambda count: "text"]),
            "cache": ("cache", [5, {}]),
            "threads": ("threads: expected a whole number of at least 1", [0, -1, 1.5, "2", True]),
        },
    ),
    "Client.restore": (
        lambda **given: Client.restore(given.pop("data"), IDENTITIES[0], AGREED, MemoryJournal(), **given),
        {"data": client().save()},
        {"data": ("data|saved client", [None, "text", 5, b"", bytes(100)]), "threads": ("threads", [0, "2"])},
    ),
    "Server": (
        Server,
        {"plan": THE_PLAN},
        {
            "plan": ("plan: expected Plan", [None, THE_PLAN.to_bytes(), AGREEMENT]),
            "journal": ("journal: expected a Journal", ["folder", 5, MemoryJournal]),
            "exclude": ("exclude", [None, 3, "3", [9], [None], {9: 1}]),
            "entropy": ("entropy: expected", [None, b"seed", lambda count: b"x"]),
            "threads": ("threads: expected a whole number of at least 1", [0, -1, 1.5, "2"]),
        },
    ),
    "Server.restore": (
        Server.restore,
        {"data": Server(Plan(**PLAN)).save()},
        {"data": ("data|saved server", [None, "text", b""]), "threads": ("threads", [0])},
    ),
    "encode": (encode, {"message": ADVERT}, {"message": ("message|field", [None, b"", 5, {}, Stage.KEYS])}),
    "encode a broken message": (
        lambda **changes: encode(replace(ADVERT, **changes)),
        {},
        {"sender": ("KeyAdvert", [None, "0", -1, 2**32, 1.5]), "mask": ("KeyAdvert", [None, 5])},
    ),
    "decode": (decode, {"data": encode(ADVERT)}, {"data": ("expected bytes", [None, "text", 5, [2, 1]])}),
    "FileJournal": (
        lambda folder: FileJournal(folder),
        {"folder": os.devnull + "x"},
        {"folder": ("folder", [None, "", 5, b"folder"])},
    ),
    "Policy": (
        Policy,
        {},
        {
            "anonymity": ("anonymity", [None, "3", 3.0, True, 1, 2**32]),
            "min_survivors": ("min_survivors", [None, 1, 2.5]),
            "max_leverage": ("max_leverage", [None, "0.5", float("nan"), 0, 1.5, True]),
            "mode": ("mode", [None, "off", ["enforce"]]),
            "memory": ("memory", [None, "day", ["round"]]),
        },
    ),
    "Policy.at_least": (Policy().at_least, {"floor": Policy()}, {"floor": ("floor: expected Policy", [None, 3])}),
    "Schedule": (
        Schedule,
        {"name": "random", "size": 3},
        {
            "name": ("schedule", [None, "other", ["random"], 5]),
            "size": ("size", [None, "3", 3.0, True, 1, 2**70]),
            "groupings": ("groupings", [None, 0, 1.5]),
            "atom": ("atom", [None, 2, "2"]),
        },
    ),
    "Schedule.draw": (
        Schedule(name="random", size=3).draw,
        {"roster": range(9), "training_seed": bytes(32), "round": 0},
        {
            "roster": ("roster", [None, 9, "012345", [0, 0, 1], [-1, 2, 3], [1.5, 2, 3], [None]]),
            "training_seed": ("seed", [None, "seed", b"short", 5]),
            "round": ("round", ["0", 0.5, -1, 2**63]),
            "sample": ("sample|too few", ["6", 5.5, -1, 0]),
        },
    ),
    "Schedule.groups": (SCHEDULE.groups, {"n": 8}, {"n": ("clients", [None, "8", 8.0, -1])}),
    "keep_whole_atoms": (
        keep_whole_atoms,
        {"atoms": [(0, 1)], "survivors": [0, 1], "least": 2},
        {"atoms": ("atoms", [None, 5, [None]]), "survivors": ("survivors", [None, 5]), "least": ("least", [None, 2.5])},
    ),
    "shuffled": (
        shuffled,
        {"items": "abc", "training_seed": bytes(32), "round": 0, "purpose": b"x"},
        {"items": ("items", [None, 5]), "purpose": ("purpose", [None, "x"]), "index": ("index", [None, -1, 0.5])},
    ),
    "audit": (
        audit,
        {"groupings": [((0, 1, 2),)], "survivors": range(3), "policy": Policy(), "plan_hash": b""},
        {
            "groupings": ("groupings", [None, 5, [5], [[5]], "text", [[("a",)]]]),
            "survivors": ("survivors", [None, 5, "012", [None], [-1]]),
            "policy": ("policy: expected Policy", [None, 3]),
            "weights": ("weight", [5, [1, 1, 1], {0: 1.0}, {0: "1", 1: 1, 2: 1}, {0: -1.0, 1: 1, 2: 1}]),
            "colluders": ("colluders", [None, 5, ["a"]]),
            "plan_hash": ("plan_hash: expected bytes", [None, "plan"]),
            "atoms": ("atoms", [5, [5]]),
            "columns": ("columns", [5, ["ab"]]),
        },
    ),
    "revealed": (revealed, {"groups": [{0, 1}]}, {"groups": ("groups", [None, 5, [5], [["a"]]])}),
    "SeedCeremony": (
        SeedCeremony,
        {"training_id": b"x", "roster": (1, 2)},
        {"training_id": ("training_id", [None, "x"]), "roster": ("roster|2 clients", [None, 5, "12", (1,), (2, 1)])},
    ),
    "SeedCeremony.commitment": (
        CEREMONY.commitment,
        {"client": 1, "contribution": bytes(32)},
        {"client": ("client", [None, "1", 9, [1]]), "contribution": ("contribution", [None, "x" * 32, bytes(31)])},
    ),
    "SeedCeremony.seed": (
        CEREMONY.seed,
        {
            "commitments": {v: CEREMONY.commitment(v, bytes([v]) * 32) for v in (1, 2)},
            "contributions": {v: bytes([v]) * 32 for v in (1, 2)},
        },
        {
            "commitments": ("commitments", [None, 5, {1: "x", 2: "y"}]),
            "contributions": ("contributions", [None, [1, 2]]),
        },
    ),
    "Beacon": (
        Beacon,
        {"name": "a", "pulse": 1},
        {"name": ("name", [None, "", 5]), "pulse": ("pulse", [None, -1, "1"])},
    ),
    "Beacon.seed": (
        Beacon(name="a", pulse=1).seed,
        {"training_id": b"x", "value": bytes(32)},
        {"training_id": ("training_id", [None, "x"]), "value": ("pulse", [None, "x", bytes(31)])},
    ),
    "Terms": (
        Terms,
        TERMS,
        {
            "name": ("name", [None, "", 5, "a\n"]),
            "members": ("members", [None, 5, (), [None]]),
            "segments": ("segments", [None, 5, (), [None]]),
            "schedule": ("schedule: expected Schedule", [None, "fixed"]),
            "last_round": ("last_round|rounds", [None, -1, "3", 1.5, 2**63]),
            "groups": ("groups", [None, "some", ["whole"]]),
            "policy": ("policy: expected Policy", [None, 3]),
            "sample": ("sample", [None, "3", 99, -1]),
            "least_groups": ("least_groups", [None, 0, 99, 1.5]),
        },
    ),
    "Agreement": (
        Agreement,
        {"terms": AGREEMENT.terms, "origin": AGREEMENT.origin},
        {"terms": ("terms: expected Terms", [None, b"terms"]), "origin": ("origin", [None, bytes(32)])},
    ),
    "Agreement.groups": (AGREEMENT.groups, {"round": 0}, {"round": ("round", [None, "0", 0.5, -1, 5])}),
    "Agreement.groups_of": (AGREEMENT.groups_of, {"client": 0, "round": 0}, {"client": ("client", [None, 9, "0"])}),
    "Agreement.sign": (
        AGREEMENT.sign,
        {"client": 0, "identity": MEMBERS[0]},
        {"client": ("client|identity", [None, 9, 1, "0"]), "identity": ("identity", [None, bytes(32), MEMBERS[1]])},
    ),
    "Agreement.check_signatures": (
        AGREEMENT.check_signatures,
        {"signatures": SIGNATURES},
        {"signatures": ("signatures", [None, 5, [b""], {0: "text"}])},
    ),
    "commit": (
        commit,
        {"terms": AGREEMENT.terms, "member": 0, "identity": MEMBERS[0], "contribution": bytes(32)},
        {
            "terms": ("terms: expected Terms", [None, AGREEMENT]),
            "member": ("member", [None, 9, "0"]),
            "identity": ("identity: expected Identity", [None, bytes(32)]),
            "contribution": ("contribution", [None, "x" * 32, bytes(31)]),
        },
    ),
    "reveal": (
        lambda **given: reveal(AGREEMENT.terms, 0, MEMBERS[0], bytes(32), **given),
        {"commitments": [commit(AGREEMENT.terms, v, MEMBERS[v], bytes(32)) for v in MEMBERS]},
        {"commitments": ("commitments", [None, 5, [None]])},
    ),
    "Commitment": (
        Commitment,
        {"member": 0, "commitment": bytes(32), "signature": bytes(64)},
        {"member": ("member", [None, -1, "0"]), "signature": ("signature: expected 64 bytes", [None, bytes(63)])},
    ),
    "box_keys": (
        box_keys,
        {"agreed": [bytes(32)], "plan_hash": b"run", "ends": [(1, 2)]},
        {
            "agreed": ("agreed", [None, [None], [bytes(31)], bytes(32)]),
            "plan_hash": ("plan_hash: expected bytes", [None, "run"]),
            "ends": ("ends|sender|receiver|pair", [None, [None], [(1,)], [("a", 2)], [(1, 2**32)]]),
        },
    ),
    "seal": (
        seal,
        {"key": KEY, "plan_hash": b"run", "sender": 1, "receiver": 2, "content": b"x"},
        {
            "key": ("key: expected 32 bytes", [None, "key", bytes(31)]),
            "sender": ("sender", [None, "1", -1, 2**32]),
            "content": ("content: expected bytes", [None, "x"]),
            "entropy": ("entropy", [None, lambda count: b"", 5]),
        },
    ),
    "unseal": (
        unseal,
        {"key": KEY, "plan_hash": b"run", "sender": 1, "receiver": 2, "box": seal(KEY, b"run", 1, 2, b"x")},
        {"box": ("box: expected bytes", [None, "x", 5]), "receiver": ("receiver", [None, "2", -1])},
    ),
    "hkdf": (
        hkdf,
        {"secret": bytes(32), "info": b"x"},
        {"secret": ("secret", [None, "x"]), "info": ("info", [None, "x"]), "length": ("length", [None, 0, 33, 1.5])},
    ),
    "Identity": (
        Identity,
        {"private": bytes(32), "public": bytes(32)},
        {"private": ("private key", [None, bytes(31)])},
    ),
    "Identity.generate": (Identity.generate, {}, {"entropy": ("entropy", [None, b"x", lambda count: b"x"])}),
    "Identity.sign": (IDENTITIES[0].sign, {"message": b"x"}, {"message": ("message: expected bytes", [None, "x", 5])}),
    "AgreementKey": (
        AgreementKey.from_private,
        {"private": bytes(32)},
        {"private": ("private key", [None, "x" * 32, bytes(31), 5])},
    ),
    "verify": (
        verify,
        {"public": IDENTITIES[0].public, "signature": IDENTITIES[0].sign(b"x"), "message": b"x", "signer": 0},
        {"public": ("bytes", [None, "x"]), "signature": ("bytes", [None, 5]), "message": ("bytes", [None, "x"])},
    ),
    "mask": (
        mask,
        {"key": bytes(16), "length": 3},
        {"key": ("key", [None, "x" * 16, bytes(15), 5]), "length": ("length", [None, -1, 1.5, 2**70, "3"])},
    ),
    "add_masks": (
        add_masks,
        {"vector": np.zeros(3, np.uint32), "keys": [bytes(16)], "signs": [1]},
        {
            "vector": ("vector", [None, [1, 2], np.zeros(3)]),
            "keys": ("key", [None, 5, [None], bytes(16)]),
            "signs": ("sign", [None, 5, [2], [[1]]]),
            "offset": ("offset", [None, -1, 1.5, 2**70]),
            "threads": ("threads", [0, -1, "2", 1.5]),
        },
    ),
    "use_backend": (enter, {"name": "openssl"}, {"name": ("backend", [None, "rc4", 5])}),
    "split": (
        split,
        {"secret": bytes(32), "threshold": 2, "holders": 3},
        {
            "secret": ("secret", [None, "x" * 32, bytes(31)]),
            "threshold": ("threshold", [None, 0, 4, 1.5, "2"]),
            "holders": ("holders|threshold", [None, 0, 2**70, 1.5, "3"]),
            "entropy": ("entropy", [None, lambda count: b""]),
        },
    ),
    "combine": (
        combine,
        {"shares": split(bytes(32), 2, 3)},
        {"shares": ("shares", [None, 5, [], [None], [bytes(33)]])},
    ),
    "Share": (
        Share,
        {"index": 1, "threshold": 2, "value": bytes(33)},
        {
            "index": ("index", [None, 0, "1"]),
            "threshold": ("threshold", [None, 0]),
            "value": ("value", [None, bytes(32)]),
        },
    ),
    "FixedPoint": (
        FixedPoint,
        {"clients": 3, "clip": 1.0},
        {
            "clients": ("clients", [None, 0, "3", 1.5, True]),
            "clip": ("clip|fit", [None, "1", 0, float("nan"), 1j, True]),
        },
    ),
    "FixedPoint.encode": (
        FLOATS.encode,
        {"update": [0.5]},
        {"weight": ("weight", [None, "1", 0, -1, float("nan")]), "out": ("out", [[0], 5, np.zeros(1)])},
    ),
    "FixedPoint.decode": (
        FLOATS.decode,
        {"total": TOTAL},
        {
            "total": ("total", [None, [0], TOTAL.astype(float)]),
            "divisor": ("divisor", [None, 0, "1"]),
            "out": ("out", [5]),
        },
    ),
    "Integers": (Integers, {"clients": 3, "bound": 5}, {"bound": ("bound|wrap", [None, -1, 1.5, "5", 2**31])}),
    "Segment": (
        Segment,
        {"shape": (2,), "clip": 1.0},
        {
            "shape": ("shape", [None, 2, "2", (0,), (1.5,), (2**31,)]),
            "name": ("name", [None, 5]),
            "clip": ("clip", [None, "1", float("nan")]),
        },
    ),
    "run": (
        run,
        {"agreement": AGREED, "inputs": INPUTS, "identities": IDENTITIES},
        {
            "agreement": ("agreement: expected Agreement|survivors", [None, THE_PLAN, AGREEMENT]),
            "round": ("round", [1, -1, "0", 0.5]),
            "cell": ("cell", [None, 1, -1, "0"]),
            "context": ("context", [None, "model", 5, [1]]),
            "inputs": ("inputs", [None, [1, 2], {}, {0: [1, 2]}]),
            "identities": ("identities", [None, {}, {0: bytes(32)}]),
            "drop": ("drop", [[3], {9: Stage.INPUTS}, {3: "inputs"}, 5, np.array([3]), np.array([])]),
            "misbehave": ("misbehave", [[3], {9: None}, {3: "silence"}, np.array([1, 2])]),
            "tamper": ("tamper", [5, {9: None}, {3: 5}, np.array([1, 2])]),
            "processes": ("processes", [None, 0, -1, "2", 1.5]),
            "journal": ("journal", ["folder", MemoryJournal]),
            "cost": ("cost", [0, {}, Stage.KEYS]),
            "on_stage": ("on_stage", [5, "print"]),
            "on_answer": ("on_answer", [5, "print"]),
            "entropy": ("entropy", [5, b"seed"]),
        },
    ),
    "clear": (
        clear,
        {"agreement": AGREED, "inputs": INPUTS},
        {"inputs": ("inputs", [None, {}]), "drop": ("drop", [[3], {9: Stage.INPUTS}, {3: 2.5}])},
    ),
    "make_identities": (make_identities, {"clients": [1]}, {"clients": ("clients", [None, 5, ["a"], [-1]])}),
    "make_roster": (make_roster, {"identities": IDENTITIES}, {"identities": ("identities", [None, 5, {0: None}])}),
    "agree_on": (
        agree_on,
        {"terms": AGREEMENT.terms, "identities": MEMBERS},
        {"terms": ("terms", [None, AGREEMENT]), "identities": ("identit", [None, {}, {0: None}])},
    ),
    "make_agreement": (
        make_agreement,
        {"members": 6, "size": 3, "length": 2, "clip": 1.0},
        {
            "members": ("members", [None, 1, "6", 6.5]),
            "size": ("size|group", [None, "3", 1, 7]),
            "length": ("shape|values", [None, 0, "2"]),
            "rounds": ("rounds", [None, 0, "1"]),
            "schedule": ("schedule", [None, "other"]),
        },
    ),
    "secure_sum": (
        secure_sum,
        {"vectors": [[1, 2]] * 4},
        {
            "vectors": ("vector", [None, 5, "text", {}, [], [[]] * 4]),
            "anonymity": ("anonymity", [None, "3", 1, 2.5, 5]),
            "drop": ("drop", [None, 3, [9], [-1], "3", {9: Stage.INPUTS}, {3: "inputs"}]),
            "threshold": ("threshold", ["3", 1.5, 9]),
            "colluders": ("colluders", ["1", 1.5, -1]),
        },
    ),
    "secure_mean": (secure_mean, {"vectors": [[1, 2]] * 4}, {"drop": ("drop", [None, [9]])}),
    "whole.Client": (
        whole_client,
        {},
        {
            "agreement": ("agreement: expected Agreement", [None, THE_PLAN, AGREEMENT.terms]),
            "signatures": ("signatures", [None, [b""], {0: "text"}]),
            "me": ("me|member", [None, "0", 9, -1]),
            "identity": ("identity", [None, bytes(32), MEMBERS[1]]),
            "entropy": ("entropy", [None, b"seed"]),
            "threads": ("threads", [0, "2"]),
        },
    ),
    "whole.Client.answer": (
        lambda context: whole_client().answer(whole.Task(0, b"", ""), [0.0, 0.0], context=context),
        {},
        {"context": ("context: expected bytes", [None, "model", 5])},
    ),
    "whole.Client.release": (whole_client().release, {}, {"round": ("round", [None, "0", 0.5])}),
    "whole.Server": (
        whole.Server,
        {"agreement": AGREEMENT},
        {"agreement": ("agreement: expected Agreement", [None, THE_PLAN]), "threads": ("threads", [0, -1, "2"])},
    ),
    "whole.Server.receive": (
        lambda **given: whole.Server(AGREEMENT).receive(**given),
        {"sender": 0, "message": b"x"},
        {"sender": ("sender", [None, "0", 9, [0]]), "message": ("expected bytes", [None, "text", 5, ADVERT])},
    ),
    "whole.Server.begin": (
        lambda **given: whole.Server(AGREEMENT).begin(**given),
        {"round": 0},
        {
            "round": ("round", [None, "0", 0.5, -1, 9]),
            "data": ("data: expected bytes", [None, "text", 5]),
            "context": ("context: expected bytes", [None, "model", 5]),
        },
    ),
    "whole.Server.hello": (
        lambda **given: whole.Server(AGREEMENT).hello(**given),
        {"round": 0},
        {"round": ("round", [None, "0", 0.5, -1, 9])},
    ),
    "whole.encode": (
        whole.encode,
        {"message": whole.Hello(bytes(32), 0)},
        {"message": ("message", [None, b"", ADVERT])},
    ),
    "whole.decode": (
        whole.decode,
        {"data": whole.encode(whole.Hello(bytes(32), 0))},
        {"data": ("bytes", [None, "x", 5])},
    ),
    "result.sum": (
        run(AGREED, INPUTS, IDENTITIES).sum,
        {"group": (0, 0)},
        {"group": ("group", [None, 0, (0, 9), [0, 0], "00"])},
    ),
}
CASES = [
    pytest.param(
        call,
        {**good, name: bad},
        words,
        id=f"{title}({name}={bad if isinstance(bad, (int, str)) else type(bad).__name__})",
    )
    for title, (call, good, arguments) in CALLS.items()
    for name, (words, values) in arguments.items()
    for bad in values
]


@pytest.mark.parametrize("title", [title for title, (_, good, _) in CALLS.items() if good])
def test_the_good_arguments_are_accepted(title: str) -> None:
    call, good, _ = CALLS[title]
    call(**good)


@pytest.mark.parametrize(("call", "arguments", "words"), CASES)
def test_a_bad_argument_fails_when_it_is_given(
    call: Callable[..., Any], arguments: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        call(**arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    three, half = np.int64(3), np.float32(0.5)
    assert type(Schedule(name="random", size=three).size) is int
    assert type(Policy(anonymity=three, max_leverage=half).anonymity) is int
    assert Plan(**{**PLAN, "round": three, "length": three, "bound": three}) == Plan(
        **{**PLAN, "round": 3, "length": 3, "bound": 3}
    )
    assert FixedPoint(clients=three, clip=half) == FixedPoint(clients=3, clip=0.5)
    assert Integers(clients=three, bound=three) == Integers(clients=3, bound=3)
    assert Member(three, bytes(32)) == Member(3, bytes(32))
    assert Schedule(name="random", size=3).draw(np.arange(9), bytes(32), np.int32(0)) == Schedule(
        name="random", size=3
    ).draw(range(9), bytes(32), 0)
    assert Server(THE_PLAN, exclude=np.array([3]), threads=np.int8(1)).waiting_for() == (0, 1, 2)
    assert secure_sum([[1], [2], [3], [4]], drop=np.array([3])).tolist() == [6]
    assert len(split(bytes(32), np.int64(2), np.int64(3))) == 3


def test_an_error_does_not_show_bytes() -> None:
    """What was given by mistake may be a key."""
    secret = b"\x07secret-" * 4
    for call in (
        lambda: Schedule(name="random", size=secret),  # type: ignore[arg-type]
        lambda: Policy(max_leverage=secret),  # type: ignore[arg-type]
        lambda: hkdf(secret, "x"),  # type: ignore[arg-type]
        lambda: client(round=secret),
        lambda: secagg.Client(0, secret, AGREED, 0, MemoryJournal()),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError) as refused:
            call()
        assert "secret-" not in str(refused.value)


@pytest.fixture(scope="module")
def every_call() -> dict[str, wrong_types.Call]:
    return {call.title: call for call in wrong_types.calls()}


@pytest.mark.parametrize("package", [*wrong_types.PACKAGES, "methods"])
def test_wrong_types_in_any_argument_of_anything_public_are_a_typed_error_or_accepted(
    every_call: dict[str, wrong_types.Call], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, tried = [], 0
    for title, call in every_call.items():
        if (title.rpartition(".")[0] if "()" not in title else "methods") != package:
            continue
        for name in call.names:
            for wrong in wrong_types.WRONG:
                tried += 1
                error = wrong_types.outcome(call, name, wrong)
                if error is not None:
                    found.append(f"{title}({name}={type(wrong).__name__}): {type(error).__name__}: {error}")
    assert not found, "\n".join(found[:20])
    assert tried > 300


def test_the_calls_cover_what_is_public(every_call: dict[str, wrong_types.Call]) -> None:
    assert {"secagg.Client", "secagg.Server", "secagg.secure_sum", "secagg.simulation.run"} <= set(every_call)
    assert {"protocol.Server().receive", "whole.Client().receive", "Agreement().plan"} <= set(every_call)
    assert len(every_call) > 200


@pytest.mark.parametrize("context", ["model", None, 5, [1], np.zeros(2)])
def test_a_context_that_is_not_bytes_is_refused_before_anything_happens(context: Any) -> None:
    server, clients = Server(THE_PLAN), {v: client(me=v, identity=IDENTITIES[v]) for v in range(4)}
    for v, one in clients.items():
        server.receive(v, one.hello())
    message = server.advance()[0]
    with pytest.raises(UsageError, match="context: expected bytes"):
        clients[0].receive(message, context=context)
    assert clients[0].receive(message).sender == 0  # the run goes on
