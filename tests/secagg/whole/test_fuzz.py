"""Malformed messages and saved states of whole groups give typed errors in bounded memory; values have one encoding.

A state that was restored from damaged bytes is also used: it may refuse, with a typed error, and nothing else.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest

from secagg.errors import SecAggError, UsageError, WireError
from secagg.exposure.audit import REPORT_EVEN_IF_EXPOSED, Policy
from secagg.whole import Client, Hello, Release, Round, Server, decode, encode, respond
from secagg.whole.messages import LAYOUTS
from tests.secagg.fuzz import Mutator, Table, fuzz
from tests.secagg.whole.cast import Cast

OPEN = Policy(min_survivors=2, anonymity=2, max_leverage=1.0, memory="round", mode=REPORT_EVEN_IF_EXPOSED)
MESSAGES = [layout.cls.__name__ for layout in LAYOUTS.values()]
EVERYTHING = [*MESSAGES, "saved client", "saved server"]
MILLION = 1_000_000
FAST = {"saved client": 3000, "saved server": 1500}


@cache
def cast() -> Cast:
    return Cast(members=4, size=2, groupings=2, schedule="random", policy=OPEN, length=2, rounds=3)


@cache
def flat() -> Cast:
    return Cast(members=4, size=4, policy=OPEN, length=1, rounds=3)


@cache
def corpus() -> dict[str, list[bytes]]:
    """Real bytes of every kind: three rounds with a dropout, and a flat sum with a release."""
    found: dict[str, set[bytes]] = {name: set() for name in EVERYTHING}
    for players in (cast(), flat()):
        kept = "saved client", "saved server"
        for round in range(3):
            for member in players.server.hello(round):
                if players is flat() and (member, round) == (3, 1):
                    client = players.clients[3]
                    pending = client.release(1)
                    client.stored(players.stores[3].keep(pending))
                    found["Release"].add(encode(pending.message))
                    players.server.receive(3, pending.message)
                elif member or round:
                    advert = players.hello(member, round)
                    found["Advert"].add(encode(advert))
                    players.server.receive(member, advert)
                found["Hello"].add(encode(Hello(players.agreement.fingerprint, round)))
            for member, message in players.server.begin(round, data=b"model").items():
                found["Round"].add(encode(message))
                answer = players.answer(member, message)
                found["Answer"].add(encode(answer))
                if players is cast():
                    found[kept[1]].add(players.server.save())
                    if member == 0:
                        found[kept[0]].add(players.clients[0].save())
                players.server.receive(member, answer)
            players.server.close()
    found["saved client"] |= {cast().new_client(0).save(), _with_keys().save()}
    found["saved server"].add(Server(cast().agreement).save())
    found["Release"] |= {encode(Release(v, 2**40, bytes(64))) for v in (0, 3)}
    return {name: sorted(values, key=len)[:20] for name, values in found.items()}


def _with_keys() -> Client:
    client = cast().new_client(0)
    client.receive(Hello(cast().agreement.fingerprint, 1))
    return client


def decode_message(data: bytes) -> bytes | None:
    try:
        message = decode(data)
    except WireError:
        return None
    return encode(message)


@cache
def next_round() -> Round:
    """A round of the first member, with adverts that its client never made."""
    return next(decode(data) for data in corpus()["Round"] if isinstance(decode(data), Round))  # type: ignore[return-value]


def decode_client(data: bytes) -> bytes | None:
    try:
        client = cast().restore(0, data)
    except UsageError:
        return None
    again = client.save()
    with suppress(SecAggError):
        client.receive(Hello(cast().agreement.fingerprint, 1))
    with suppress(SecAggError):
        client.receive(next_round())
        respond(client, cast().stores[0], client.task, [0, 0])
    client.save()
    return again


def decode_server(data: bytes) -> bytes | None:
    try:
        server = Server.restore(data, cast().agreement)
    except UsageError:
        return None
    again = server.save()
    for message in corpus()["Answer"][-2:]:
        server.receive(1, message)
    with suppress(SecAggError):
        server.outbox()
        server.close()
    with suppress(SecAggError):
        server.hello(2)
        server.begin(2)
    return again


@cache
def decoders() -> Table:
    """Name -> decoder, real bytes, how many leading bytes to keep, whether each value has one encoding."""
    found = corpus()
    table: Table = {name: (decode_message, found[name], 2, True) for name in MESSAGES}
    table["saved client"] = (decode_client, found["saved client"], 22, True)
    table["saved server"] = (decode_server, found["saved server"], 22, False)  # a repeated client is stored once
    return table


@pytest.mark.parametrize("name", EVERYTHING)
def test_mutated_bytes_give_a_value_with_that_encoding_or_a_typed_error(name: str) -> None:
    report = fuzz(name, FAST.get(name, 5000), 0, decoders())
    assert 0 < report.decoded < report.inputs


@pytest.mark.long
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_million_mutated_inputs_give_values_or_typed_errors_in_bounded_memory(name: str) -> None:
    report = fuzz(name, MILLION, 1, decoders())
    print(report)
    assert report.grown_kb < 64 * 1024


def test_the_corpus_has_real_bytes_of_every_kind() -> None:
    assert all(len(found) >= 2 for found in corpus().values())
    assert any(decode(data).releases for data in corpus()["Round"])  # type: ignore[union-attr]
    assert len(corpus()["saved server"]) >= 8


def peak_of(act: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_count_of_four_billion_allocates_little(name: str) -> None:
    """Overwrites every four bytes of real bytes, and so every count."""
    read, bases, keep, _ = decoders()[name]
    raw = bases[-1]

    def act() -> None:
        for at in range(keep, len(raw) - 3, 1 if len(raw) < 1000 else 3):
            read(raw[:at] + b"\xff\xff\xff\xff" + raw[at + 4 :])

    act()
    assert peak_of(act) < 1_000_000


def test_mutated_rounds_are_refused_or_answered_with_groups_of_the_agreement() -> None:
    players = Cast(members=4, size=2, groupings=2, schedule="random", policy=OPEN, length=2, rounds=3)
    message = players.begin(0)[0]
    saved, mutate = players.clients[0].save(), Mutator([encode(message)], 5, 2)
    answered = refused = 0
    for _ in range(400):
        client = players.restore(0, saved)
        try:
            client.receive(mutate())
            pending = client.answer(client.task, [1, 2])
            assert set(pending.message.groups) <= set(players.groups())  # type: ignore[union-attr]
            answered += 1
        except SecAggError:
            refused += 1
    assert answered > 10
    assert refused > 100
