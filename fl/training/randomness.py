"""What is drawn and derived from (seed, round) alone, without torch, so that every party derives the same.

These are the simulation's own dice (who attacks, who drops out, which examples validate) and the context that
every client binds into its masks. No mask and no key ever comes from here.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fl.config.schema import STAGES, Experiment


def generator(seed: int, t: int, purpose: str) -> np.random.Generator:
    """The dice of round t for one purpose."""
    digest = hashlib.sha256(f"fl/rounds/v1:{seed}:{t}:{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def attackers(e: Experiment) -> frozenset[int]:
    """The Byzantine clients: drawn once, the same for the whole training."""
    lot = np.random.default_rng([e.seed, *b"byzantine"])
    return frozenset(int(client) for client in lot.permutation(e.clients)[: e.byzantine])


def absences(e: Experiment, t: int) -> dict[int, str]:
    """Who stops answering in this round, and with which message."""
    lot = generator(e.seed, t, "dropout")
    chance, stages = lot.random(e.clients), lot.integers(0, len(STAGES), e.clients)
    gone = {
        client: STAGES[stages[client]] if e.dropout.stage == "any" else e.dropout.stage
        for client in range(e.clients)
        if chance[client] < e.dropout.rate
    }
    for absence in e.dropout.schedule:
        if absence.round == t + 1:
            gone |= dict.fromkeys(absence.clients, absence.stage)
    return gone


def context(e: Experiment, model_hash: bytes) -> bytes:
    """What every client binds into its masks: the configuration and the model it was given."""
    return hashlib.sha256(b"fl/context/v1:" + e.fingerprint + model_hash).digest()
