"""What everybody derives from the seed and the round alone: who attacks, who drops out, which examples validate.

It needs no torch. No mask and no key comes from here.
"""

import hashlib

import numpy as np

from fl.config.schema import STAGES, Experiment
from secagg import Stage
from secagg.agreement import SURVIVORS


def generator(seed: int, t: int, purpose: str) -> np.random.Generator:
    """The random generator of round t for one purpose."""
    digest = hashlib.sha256(f"fl/rounds/v1:{seed}:{t}:{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def attackers(experiment: Experiment) -> frozenset[int]:
    """The Byzantine clients: drawn once, the same for the whole training."""
    random = np.random.default_rng([experiment.seed, *b"byzantine"])
    return frozenset(int(client) for client in random.permutation(experiment.clients)[: experiment.byzantine])


def absences(experiment: Experiment, t: int) -> dict[int, Stage]:
    """The clients that stop answering in round t, and the stage at which each of them stops.

    Whole groups have one exchange: a dropout does not send its input.
    """
    random, dropout = generator(experiment.seed, t, "dropout"), experiment.dropout
    any_stage = dropout.stage == "any" and experiment.groups == SURVIVORS
    chance = random.random(experiment.clients)
    stages = random.integers(0, len(STAGES), experiment.clients)
    absent = {
        client: Stage(int(stages[client])) if any_stage else stage_named(dropout.stage)
        for client in range(experiment.clients)
        if chance[client] < dropout.rate
    }
    for absence in dropout.schedule:
        if absence.round == t + 1:
            absent |= dict.fromkeys(absence.clients, stage_named(absence.stage))
    return absent


def stage_named(name: str) -> Stage:
    """The stage that a configuration names."""
    return Stage.INPUTS if name == "any" else Stage[name.upper()]


def context(experiment: Experiment, model_hash: bytes) -> bytes:
    """What every client binds into its masks: the configuration and the model that it was given."""
    return hashlib.sha256(b"fl/context/v1:" + experiment.fingerprint + model_hash).digest()
