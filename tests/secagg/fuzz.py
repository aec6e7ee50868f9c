"""Fuzz every decoder with mutated bytes of real messages, plans and saved states.

`fuzz(name, count, seed)` runs one decoder. Every input must give a value whose encoding is exactly the input, or an
error that the decoder documents. `python -m tests.secagg.fuzz 1000000` runs all decoders of rounds with survivors
and prints a table; with `--whole` those of whole groups, with `--evidence` those of agreements, evidence, journals and
statements, with `--net` those of the network service; with `--seed 7` on other inputs.
"""

import random
import resource
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from secagg import Client, MemoryJournal, Plan, Policy, Schedule, SecAggError, Server, Stage, UsageError, WireError
from secagg.protocol.client_state import State
from secagg.protocol.wire import LAYOUTS, decode, encode
from tests.secagg.cheats import CHEATS
from tests.secagg.cluster import Cluster, identity, make_inputs, make_plan

EXTREMES = tuple(
    value.to_bytes(4, "little")
    for value in (0, 1, 2, 33, 255, 256, 65535, 65536, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
)


@cache
def plans() -> list[Plan]:
    """Plans of every kind, small so that they decode fast."""
    return [
        make_plan(2, colluders=0, length=1),
        make_plan(3, colluders=0, threshold=2, length=2, schedule=Schedule(name="random", size=3)),
        make_plan(
            4,
            colluders=0,
            length=1,
            schedule=Schedule(name="random", size=2, groupings=2),
            bound=None,
            clip=1.0,
            weights=(1, 2, 3, 4),
            context=b"context",
        ),
        make_plan(4, colluders=1, schedule=Schedule(name="atoms", size=4, atom=2), policy=Policy(anonymity=2)),
        make_plan(4, schedule=Schedule(name="transversal", size=2, groupings=2), colluders=0),
        make_plan(5, schedule=Schedule(name="fixed", size=5), degree=2, threshold=2),
    ]


@dataclass(frozen=True)
class Corpus:
    """Real bytes for every decoder."""

    messages: dict[str, list[bytes]]
    plans: list[bytes]
    clients: list[bytes]
    servers: list[bytes]


@cache
def corpus() -> Corpus:
    messages: dict[str, set[bytes]] = {layout.cls.__name__: set() for layout in LAYOUTS.values()}
    clients: set[bytes] = set()
    servers: set[bytes] = set()
    for plan in plans():
        cheats = {1: CHEATS["disputes everybody"]}
        if len(plan.ids) > 3 and not plan.semi_honest_only:
            cheats[0] = CHEATS["silence at unmasking"]
        cluster = Cluster(plan, make_inputs(plan), cheats=cheats if not plan.clips else {}).start()
        try:
            while cluster.server.stage < Stage.DONE:
                while cluster.flying:
                    letter = cluster.flying[0]
                    messages[type(decode(letter.data)).__name__].add(letter.data)
                    for v, machine in cluster.clients.items():
                        if machine.state not in (State.FAILED, State.DONE) and v < 2:
                            data = machine.save()
                            clients.add(data)
                            cluster.clients[v] = Client.restore(data, identity(v), cluster.agreed, cluster.journals[v])
                    cluster.deliver()
                data = cluster.server.save()
                servers.add(data)
                cluster.server = Server.restore(data, cluster.server_journal, plan=plan)
                cluster.advance()
        except SecAggError:
            pass
    servers.add(Server(Plan.from_bytes(plans()[1].to_bytes())).save())  # of a plan that was drawn from its own roster
    return Corpus(
        {name: sorted(found, key=len)[:20] for name, found in messages.items()},
        [plan.to_bytes() for plan in plans()],
        sorted(clients, key=len)[:20],
        sorted(servers, key=len)[:12],
    )


class Mutator:
    """Damages real bytes: changes bits, bytes and lengths; cuts, repeats, splices; adds noise."""

    def __init__(self, bases: list[bytes], seed: int, keep: int) -> None:
        assert bases
        self._bases, self._keep = bases, keep
        self._rng = random.Random(seed)

    def __call__(self) -> bytes:
        rng = self._rng
        base = bytearray(rng.choice(self._bases))
        head = bytes(base[: self._keep]) if rng.random() < 0.97 else b""
        for _ in range(1 + (rng.random() < 0.4) + (rng.random() < 0.1)):
            if not base:
                break
            at, kind = rng.randrange(len(base)), rng.random()
            if kind < 0.25:
                base[at] ^= 1 << rng.randrange(8)
            elif kind < 0.4:
                base[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            elif kind < 0.7:
                base[at : at + 4] = rng.choice(EXTREMES)
            elif kind < 0.78:
                del base[at:]
            elif kind < 0.84:
                base += rng.randbytes(rng.choice((1, 2, 4, 33, 64)))
            elif kind < 0.9:
                del base[at : at + rng.choice((1, 4, 32, 36))]
            elif kind < 0.95:
                base[at:at] = base[at : at + rng.choice((1, 4, 32, 68))]
            elif kind < 0.98:
                other = rng.choice(self._bases)
                base[at:] = other[rng.randrange(len(other)) :]
            else:
                base = bytearray(rng.randbytes(rng.randrange(200)))
        base[: len(head)] = head
        return bytes(base)


Decoder = Callable[[bytes], bytes | None]  # the encoding of the decoded value, or None for a documented error
Table = dict[str, tuple[Decoder, list[bytes], int, bool]]


def decode_message(data: bytes) -> bytes | None:
    try:
        message = decode(data)
    except WireError:
        return None
    return encode(message)


def decode_plan(data: bytes) -> bytes | None:
    try:
        return Plan.from_bytes(data).to_bytes()
    except (WireError, UsageError):
        return None


def decode_client(data: bytes) -> bytes | None:
    try:
        client = Client.restore(data, identity(0), _agreed(), MemoryJournal())
        if client.state in (State.FAILED, State.DONE):
            return data  # such a state cannot be saved; every use of it is refused
        return client.save()
    except UsageError:
        return None


@cache
def _agreed() -> object:
    return Cluster(plans()[1], make_inputs(plans()[1])).agreed


def saved_under(data: bytes) -> Plan | None:
    """The plan to restore a saved server with: none, if the bytes do not say that it follows from an agreement."""
    if b"agreement" not in data[:40]:
        return None
    return next((plan for plan in plans() if plan.to_bytes() in data), plans()[1])


def decode_server(data: bytes) -> bytes | None:
    try:
        server = Server.restore(data, plan=saved_under(data))
    except UsageError:
        return None
    return server.save() if server.stage < Stage.DONE else data


def decoders() -> Table:
    """Name -> decoder, real bytes, how many leading bytes to keep, whether each value has one encoding."""
    found = corpus()
    table: Table = {name: (decode_message, bases, 2, True) for name, bases in found.messages.items()}
    table["Plan"] = (decode_plan, found.plans, 1, True)
    table["saved client"] = (decode_client, found.clients, 16, True)
    table["saved server"] = (decode_server, found.servers, 16, False)  # a repeated client is stored once
    return table


@dataclass
class Report:
    """The results of one decoder."""

    name: str
    inputs: int
    decoded: int
    seconds: float
    grown_kb: int

    def __str__(self) -> str:
        rate = self.inputs / self.seconds
        return (
            f"{self.name:18} {self.inputs:>9,} inputs  {self.decoded:>9,} decoded  "
            f"{rate:>7,.0f}/s  peak memory +{self.grown_kb / 1024:.1f} MB"
        )


def fuzz(name: str, count: int, seed: int, table: Table | None = None) -> Report:
    """Run one decoder. An undocumented error or a second encoding raises, with the input in a note."""
    decoder, bases, keep, canonical = (table or decoders())[name]
    mutate, decoded = Mutator(bases, seed, keep), 0
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    for number in range(count):
        data = mutate()
        try:
            again = decoder(data)
            if again is not None:
                decoded += 1
                assert not canonical or again == data, "another encoding of the same value was accepted"
        except BaseException as failure:
            failure.add_note(f"{name}, input {number} of seed {seed}: {data.hex()}")
            raise
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Report(name, count, decoded, time.perf_counter() - start, grown)


TABLES = {  # these modules import this one
    "whole": "tests.secagg.whole.test_fuzz",
    "evidence": "tests.secagg.evidence.test_decoders",
    "net": "tests.net.test_decoders",
}


def table_of(kind: str) -> Table:
    """The decoders of rounds with survivors, or of a kind in `TABLES`."""
    if not kind:
        return decoders()
    table: Table = import_module(TABLES[kind]).decoders()
    return table


def names(kind: str) -> list[str]:
    return list(table_of(kind))


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.secagg.fuzz", description="Decode mutated bytes.")
    parser.add_argument("count", type=int, help="inputs per decoder")
    parser.add_argument("names", nargs="*", help="decoders (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(kind="")
    for kind, module in TABLES.items():
        parser.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=f"those of {module}")
    options = parser.parse_intermixed_args()
    table = table_of(options.kind)
    for name in options.names or table:
        print(fuzz(name, options.count, options.seed, table), flush=True)


if __name__ == "__main__":
    main()
