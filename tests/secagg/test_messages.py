"""Messages and outboxes as a caller sees them: no bulk and no secrets in what is shown, and one answer per receiver."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg import UsageError
from secagg.protocol.messages import Bundle, Dealing, KeyAdvert, MaskedInput, Outbox, Signatures, Unmasking
from secagg.protocol.noise import NoiseSource
from secagg.protocol.result import GroupSum, Result, Stage
from secagg.protocol.server_state import ServerMemory
from secagg.protocol.unmask import Rebuilt, ReceivedShares, Shares
from tests.secagg.cluster import make_plan
from tests.secagg.malicious import World

BULK = b"bulk or secret"


def test_what_is_shown_of_a_message_has_neither_bulk_nor_secrets() -> None:
    assert repr(Dealing(1, (), b"root", b"signed", BULK, BULK)) == (
        "Dealing(sender=1, commitments=(), root=b'root', signature=b'signed')"
    )
    assert repr(Bundle((), BULK, BULK)) == "Bundle(dealers=())"
    vectors = np.array([[77_777]], np.uint32)
    assert repr(MaskedInput(1, (2,), b"signed", vectors)) == "MaskedInput(sender=1, disputes=(2,), signature=b'signed')"
    assert repr(Unmasking(1, BULK, (2,), BULK, (3,), BULK, b"signed")) == (
        "Unmasking(sender=1, seed_owners=(2,), key_owners=(3,), signature=b'signed')"
    )


def test_what_is_shown_of_the_messages_of_a_run() -> None:
    puppet = World(make_plan(4)).run_to(Stage.UNMASKING)[1]
    shown = {type(message).__name__: repr(message) for message in (*puppet.said, *puppet.heard_all)}
    assert shown.keys() == {
        "KeyAdvert", "KeyList", "Dealing", "Bundle", "MaskedInput", "Survivors", "Consistency", "Signatures",
        "Unmasking",
    }  # fmt: skip
    for text in shown.values():
        for name in ("hashes", "boxes", "proofs", "vectors", "own", "seeds", "keys"):
            assert f"({name}=" not in text
            assert f" {name}=" not in text
    held = puppet.fork().client._memory.held
    assert "nonce" not in repr(held)
    assert "shares" not in repr(held)


def test_what_is_shown_of_sums_and_shares_has_neither_bulk_nor_secrets() -> None:
    total = np.array([77_777], np.uint32)
    assert repr(GroupSum(total, (0, 1))) == "GroupSum(members=(0, 1))"
    anything: Any = SimpleNamespace()
    memory = ServerMemory(plan=anything, instance=b"name", sums={(0, 0): total})
    assert memory.stage is Stage.KEYS
    shares = Shares(anything, {1: anything}, {(1, 1): BULK})
    rebuilt = Rebuilt({(1, 1): BULK}, {}, {}, {})
    received = ReceivedShares(anything, np.array([[77]], np.uint8), np.array([True]))
    assert repr(rebuilt) == "Rebuilt(missing={}, cheating_dealers={}, unfit={})"
    for shown in (repr(memory), repr(shares), repr(rebuilt), repr(received)):
        assert "77" not in shown
        assert "bulk" not in shown
        assert " sums=" not in shown
        assert "shares=" not in shown
    names = [name for name, field in Result.__dataclass_fields__.items() if not field.repr]
    assert names == ["record"]


def test_an_outbox_makes_a_message_for_each_receiver_when_it_is_asked() -> None:
    made: list[int] = []

    def make(client: int) -> Signatures:
        made.append(client)
        return Signatures(())

    outbox = Outbox((4, 2), make)
    assert (list(outbox), len(outbox), made) == ([4, 2], 2, [])
    assert outbox[2] == Signatures(())
    assert made == [2]
    with pytest.raises(KeyError, match=r"^3$"):
        outbox[3]
    assert (3 in outbox, outbox.get(3), made) == (False, None, [2])
    with pytest.raises(UsageError, match=r"^make: expected a function, got Signatures$"):
        Outbox((1,), Signatures(()))  # type: ignore[arg-type]


class Drawing:
    """An encoding that counts how often noise is drawn."""

    noise = ("one",)

    def __init__(self) -> None:
        self.drawn = 0

    def draw_noise(self, entropy: Any, threads: int | None) -> Any:
        assert (entropy, threads) == ("entropy", 3)
        self.drawn += 1
        return np.full(2, self.drawn, np.uint32)


def test_noise_is_drawn_once_for_each_update_and_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding: Any = Drawing()
    source, encoded = NoiseSource("entropy", 3), np.array([10, 2**32 - 1], np.uint32)  # type: ignore[arg-type]
    source.prepare(encoding)
    source.prepare(encoding)
    assert encoding.drawn == 1
    source.add_to(encoding, encoded)
    assert (encoded.tolist(), encoding.drawn) == ([11, 0], 1)
    source.add_to(encoding, encoded)  # not prepared
    assert (encoded.tolist(), encoding.drawn) == ([13, 2], 2)
    source.prepare(encoding)
    monkeypatch.setattr(os, "getpid", lambda: -7)  # a fork
    source.add_to(encoding, encoded)
    assert (encoded.tolist(), encoding.drawn) == ([17, 6], 4)


def test_without_noise_nothing_is_drawn_or_added() -> None:
    encoding: Any = SimpleNamespace(noise=())
    encoded = np.array([10], np.uint32)
    source = NoiseSource(bytes, None)
    source.prepare(encoding)
    source.add_to(encoding, encoded)
    assert encoded.tolist() == [10]


def test_adverts_that_differ_in_anything_are_different() -> None:
    advert = KeyAdvert(1, b"c", b"m", b"s")
    assert advert == KeyAdvert(1, b"c", b"m", b"s")
    for other in (KeyAdvert(2, b"c", b"m", b"s"), KeyAdvert(1, b"x", b"m", b"s"), KeyAdvert(1, b"c", b"m", b"x")):
        assert advert != other
