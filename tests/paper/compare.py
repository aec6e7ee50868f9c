"""What the paper compares itself with, beside this toolkit: seconds and bytes per million parameters, in one run.

    python -m tests.paper.compare                       # 12 clients, a million parameters
    python -m tests.paper.compare --markdown            # the table of docs/comparison.md

CPU seconds of one client, and of all servers together. All ciphertexts cost the same, so the homomorphic
scheme is measured on a sample of them and scaled. Needs `phe`; `gmpy2` makes it several times faster.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secagg.simulation import Cost, WholeRun, make_agreement
from tests.paper import homomorphic, two_servers

MILLION = 1_000_000
CLUSTER = 3


class Measured(NamedTuple):
    """One scheme, for a million parameters."""

    name: str
    client_seconds: float
    server_seconds: float
    client_megabytes: float
    server_megabytes: float
    note: str


def ours(updates: NDArray[np.float32]) -> Measured:
    """Whole groups of three, with signatures, transcripts and the audit."""
    clients, length = updates.shape
    agreement, identities = make_agreement(members=clients, size=CLUSTER, length=length, clip=1.0)
    run, cost = WholeRun(agreement, identities), Cost()
    run.client(0)
    result = run.round(0, dict(enumerate(updates)), cost=cost)
    for name, group in result.groups.items():
        exact = updates[list(group.members)].sum(axis=0, dtype=np.float64)
        assert np.abs(np.asarray(result.sum(name)) - exact).max() < 1e-6
    scale = MILLION / length
    return Measured(
        f"whole groups of {CLUSTER} (this toolkit)",
        sum(cost.client_seconds.values()) / clients * scale,
        sum(cost.server_seconds.values()) * scale,
        sum(cost.bytes_up.values()) / clients / 1e6 * scale,
        0.0,
        f"the mean of each group of {CLUSTER}",
    )


def two(updates: NDArray[np.float32]) -> Measured:
    """Distances on shares between two servers."""
    clients, length = updates.shape
    spent = two_servers.Spent()
    found = two_servers.aggregate(updates, f=1, count=clients - 3, spent=spent)
    exact = updates[found.selected].mean(axis=0, dtype=np.float64)
    assert np.abs(found.mean - exact).max() < 1e-4
    scale = MILLION / length
    return Measured(
        "two servers, distances on shares",
        spent.seconds["clients"] / clients * scale,
        (spent.seconds["servers"] + spent.seconds["dealer"]) * scale,
        spent.bytes["clients"] / clients / 1e6 * scale,
        (spent.bytes["between servers"] + spent.bytes["dealer"]) / 1e6 * scale,
        "one mean, and who was selected; the second server also all distances",
    )


def encrypted(updates: NDArray[np.float32], sample: int) -> Measured:
    """Paillier with packed values, on the first `sample` ciphertexts of each update."""
    from phe import paillier

    public, private = paillier.generate_paillier_keypair(n_length=homomorphic.KEY_BITS)
    per = homomorphic.slots(public)
    part = np.ascontiguousarray(updates[:, : sample * per])
    clients, length = part.shape
    start = time.process_time()
    sent = [homomorphic.encrypt(public, update) for update in part]
    encrypting = (time.process_time() - start) / clients
    start = time.process_time()
    totals = homomorphic.add(public, sent)
    adding = time.process_time() - start
    start = time.process_time()
    mean = homomorphic.decrypt(private, totals, length, clients)
    decrypting = time.process_time() - start
    assert np.abs(mean - part.mean(axis=0, dtype=np.float64)).max() < 1e-6
    scale = MILLION / length
    size = -(-MILLION // per) * homomorphic.ciphertext_bytes(public) / 1e6
    return Measured(
        f"Paillier, {homomorphic.KEY_BITS} bits, {per} values in a ciphertext",
        (encrypting + decrypting) * scale,
        adding * scale,
        size,
        0.0,
        "nothing, unless a client sends it the mean of all; no robust rule can be applied",
    )


def measure(clients: int, parameters: int, sample: int) -> list[Measured]:
    """All schemes on the same updates."""
    small = np.random.default_rng(0).normal(0, 0.1, (6, 2048)).astype(np.float32)
    ours(small), two(small)  # compiles what is compiled
    updates = np.random.default_rng(1).normal(0, 0.1, (clients, parameters)).astype(np.float32)
    found = [ours(updates), two(updates)]
    return [*found, encrypted(updates, sample)] if find_spec("phe") else found


HEADS = ("scheme", "a client, s", "servers, s", "a client sends, MB", "servers exchange, MB", "the server learns")


def rows(found: list[Measured]) -> list[tuple[str, ...]]:
    return [
        (m.name, f"{m.client_seconds:.3g}", f"{m.server_seconds:.3g}", f"{m.client_megabytes:.1f}",
         f"{m.server_megabytes:.1f}", m.note)
        for m in found
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--parameters", type=int, default=MILLION)
    parser.add_argument("--sample", type=int, default=8, help="ciphertexts of each client that are measured")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    table = rows(measure(options.clients, options.parameters, options.sample))
    if options.markdown:
        print("| " + " | ".join(HEADS) + " |\n|---|--:|--:|--:|--:|---|")
        print("\n".join("| " + " | ".join(row) + " |" for row in table))
    else:
        for row in table:
            print("; ".join(f"{head}: {cell}" for head, cell in zip(HEADS, row, strict=True)))
    if not find_spec("phe"):
        print("phe is not installed: pip install 'share-secagg[oracles]'", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
