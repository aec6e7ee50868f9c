"""Clients that break the protocol, for simulations: what they send instead of honest messages."""

import hashlib
from dataclasses import replace
from enum import Enum

from secagg.agreement.plan import Plan
from secagg.crypto.keys import Identity
from secagg.protocol import transcript
from secagg.protocol.messages import Dealing, ToServer, Unmasking
from secagg.protocol.result import Stage


class Misbehaviour(Enum):
    """One way to break the protocol.

    - SILENCE: send nothing from the masked input on.
    - GARBAGE: send bytes that are not a message instead of the masked input.
    - WRONG_SHARES: at unmasking, send signed shares that differ from those that the peers dealt.
    - BROKEN_BOXES: deal boxes that no peer can open. The client is blamed; its groups open all the same, because it
      gives its own seeds.

    >>> Misbehaviour("garbage").unusable_from.name
    'INPUTS'
    """

    SILENCE = "silence"
    GARBAGE = "garbage"
    WRONG_SHARES = "wrong-shares"
    BROKEN_BOXES = "broken-boxes"

    @property
    def unusable_from(self) -> Stage:
        """The first stage at which the server cannot use this client's message; DONE if there is none."""
        if self is Misbehaviour.BROKEN_BOXES:
            return Stage.DONE
        return Stage.UNMASKING if self is Misbehaviour.WRONG_SHARES else Stage.INPUTS

    def reply(self, stage: Stage, message: ToServer, *, plan: Plan, identity: Identity) -> ToServer | bytes | None:
        """What the client sends instead of this honest message; None if it sends nothing."""
        if self is Misbehaviour.SILENCE:
            return None if stage >= Stage.INPUTS else message
        if self is Misbehaviour.GARBAGE and stage is Stage.INPUTS:
            return hashlib.shake_256(plan.hash + identity.public).digest(100)
        if self is Misbehaviour.BROKEN_BOXES and isinstance(message, Dealing):
            return replace(message, boxes=bytes(255 - byte for byte in message.boxes))
        if self is Misbehaviour.WRONG_SHARES and isinstance(message, Unmasking):
            wrong = replace(message, seeds=_flipped(message.seeds), keys=_flipped(message.keys))
            return replace(wrong, signature=identity.sign(transcript.unmasking_statement(plan.hash, wrong)))
        return message


def _flipped(shares: bytes) -> bytes:
    return bytes(byte ^ 1 for byte in shares)
