"""The vectors of agreements: the bytes, and what follows from them, have not changed."""

import json

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
