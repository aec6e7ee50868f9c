"""The vectors of agreements: the bytes, and what follows from them, have not changed."""

import json
import struct

import pytest

from tests.secagg import second_whole
from tests.secagg.agreement import vectors

STORED = {vector["name"]: vector for vector in json.loads(vectors.FILE.read_text())}


def test_the_bytes_of_agreements_have_not_changed() -> None:
    assert vectors.vectors() == list(STORED.values())


def test_every_stored_agreement_gives_what_the_vectors_say() -> None:
    for vector in STORED.values():
        said = {key: value for key, value in vector.items() if key not in ("name", "bytes")}
        assert vectors.outcome(bytes.fromhex(vector["bytes"])) == said, vector["name"]


def test_good_and_refused_agreements_are_there() -> None:
    assert all("fingerprint" in STORED[name] for name in vectors.good())
    assert all("error" in STORED[name] for name, _ in vectors.refused())
    peers = {vector["member"] for vector in STORED.values() if vector.get("error") == "peer"}
    assert peers == {None, 0, 1, 3}  # nobody is blamed for a wrong pulse


class Unsigned(second_whole.Agreement):
    """The second implementation's reading of an agreement that has its seed and no signatures yet."""

    def __init__(self, data: bytes) -> None:
        members = second_whole.Terms(second_whole.Strict(data).blob()).ids
        super().__init__(data, dict.fromkeys(members, b""))

    def signed(self, who: int, signature: bytes, what: str, *parts: bytes) -> bool:
        return True


@pytest.mark.parametrize("name", [name for name in STORED if "statistics" not in name])
def test_the_second_implementation_reads_and_refuses_the_same_pulses_and_ceremonies(name: str) -> None:
    vector = STORED[name]
    data = bytes.fromhex(vector["bytes"])
    if "error" in vector:
        with pytest.raises((second_whole.Refused, AssertionError, struct.error)):
            Unsigned(data)
        return
    found = Unsigned(data)
    assert (found.seed.hex(), found.fingerprint.hex()) == (vector["seed"], vector["fingerprint"])
