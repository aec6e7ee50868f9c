"""Vectors that nobody here wrote, through this project's own doors, kernels and plain reference.

`cryptography-vectors` carries them: RFC 7748 (X25519), the 1024 signatures of the Ed25519 authors, RFC 5869
(HKDF-SHA256), NIST's AES known answers and RFC 3686 (AES-CTR), NIST's CAVS for AES-GCM. What this project narrows is
part of what is checked: public keys with the unused bit set are refused, HKDF has no salt and gives at most 32 bytes,
boxes have nonces of 96 bits and tags of 128.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import cryptography_vectors
import numpy as np
import pytest

from secagg import PeerError, reference
from secagg.crypto import box, prg
from secagg.crypto.keys import AgreementKey, Identity, hkdf, hkdf_each, verify

FOLDER = Path(cryptography_vectors.__file__).parent


def cases(name: str, first: str = "COUNT") -> Iterator[dict[str, str]]:
    """The cases of a file of `name = value` lines, with the headings in square brackets that hold for each."""
    headings: dict[str, str] = {}
    case: dict[str, str] = {}
    for line in (FOLDER / name).read_text().splitlines():
        key, equals, value = (part.strip() for part in line.strip("[]").partition("="))
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            headings = {**headings, key: value} if equals else {"part": key}
        elif key.upper() == first:
            if case:
                yield case
            case = dict(headings)
        else:
            case[key] = value if equals else "yes"
    yield case


def test_x25519_of_rfc_7748() -> None:
    seen = [(c["INPUT_SCALAR"], c["INPUT_U"], c["OUTPUT_U"]) for c in cases("asymmetric/X25519/rfc7748.txt")]
    assert len(seen) == 3
    for scalar, u, output in (tuple(map(bytes.fromhex, row)) for row in seen):
        assert reference.agree(scalar, u) == output
        if u[31] < 128:
            assert AgreementKey.from_private(scalar).agree(u) == output
        else:  # the bit that RFC 7748 ignores: one key would have two encodings
            with pytest.raises(PeerError, match="canonical"):
                AgreementKey.from_private(scalar).agree(u)


def test_ed25519_of_its_authors() -> None:
    lines = (FOLDER / "asymmetric/Ed25519/sign.input").read_text().splitlines()
    assert len(lines) == 1024
    for line in lines:
        private, public, message, signed = (bytes.fromhex(part) for part in line.split(":")[:4])
        identity, signature = Identity.from_private(private[:32]), signed[:64]
        assert identity.public == public
        assert identity.sign(message) == reference.sign(private[:32], message) == signature
        verify(public, signature, message, signer=1)
        with pytest.raises(PeerError, match="wrong signature"):
            verify(public, signature, message + b"\0", signer=1)


def test_hkdf_of_rfc_5869_without_a_salt() -> None:
    (case,) = (c for c in cases("KDF/rfc-5869-HKDF-SHA256.txt") if not c["salt"])
    secret, info, expected = (bytes.fromhex(case[name]) for name in ("IKM", "info", "OKM"))
    assert hkdf(secret, info) == expected[:32]
    assert reference.hkdf(secret, info, int(case["L"])) == expected


def test_many_hkdf_at_once_equal_one_after_the_other() -> None:
    """The kernel has no vector with 32-byte secrets of its own; it is held against what the vector holds."""
    secrets, infos = (np.frombuffer(os.urandom(32 * 300), np.uint8).reshape(300, 32) for _ in range(2))
    found = hkdf_each(secrets, infos)
    for row, secret, info in zip(found, secrets, infos, strict=True):
        assert row.tobytes() == hkdf(secret.tobytes(), info.tobytes()) == reference.hkdf(bytes(secret), bytes(info))


@pytest.mark.parametrize("backend", prg.available_backends())
@pytest.mark.parametrize("name", ["ECBVarKey128", "ECBKeySbox128"])
def test_masks_begin_with_nists_block_of_zeros(backend: str, name: str) -> None:
    """Counter block 0 under 149 keys: every bit of the key, and the S-box of the key schedule."""
    chosen = [c for c in cases(f"ciphers/AES/ECB/{name}.rsp") if c["part"] == "ENCRYPT"]
    assert len(chosen) == {"ECBVarKey128": 128, "ECBKeySbox128": 21}[name]
    for case in chosen:
        key, plain, expected = (bytes.fromhex(case[part]) for part in ("KEY", "PLAINTEXT", "CIPHERTEXT"))
        assert plain == bytes(16)
        with prg.use_backend(backend):
            assert prg.mask(key, 4).astype("<u4").tobytes() == expected
        assert np.array(reference.expand(key, 4), "<u4").tobytes() == expected


def gcm(name: str, size: int) -> Iterator[tuple[list[bytes], bool]]:
    """(key, nonce, additional data, plain, ciphertext and tag), and whether it opens."""
    for case in cases(f"ciphers/AES/GCM/{name}{size}.rsp"):
        if (case["IVlen"], case["Taglen"]) == ("96", "128"):
            parts = [case[part] for part in ("Key", "IV", "AAD")] + [case.get("PT", ""), case["CT"] + case["Tag"]]
            yield [bytes.fromhex(part) for part in parts], "FAIL" not in case


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Where a box is addressed to; the vectors have additional data of their own."""
    place = [b""]
    monkeypatch.setattr(box, "_address", lambda *ends: place[0])
    return place


def test_boxes_encrypt_as_nists_gcm(address: list[bytes]) -> None:
    seen = 0
    for (key, nonce, data, plain, expected), _ in gcm("gcmEncryptExtIV", 256):
        address[0] = data
        made = box.seal(key, b"run", 1, 2, plain, lambda size, nonce=nonce: nonce)
        assert made == nonce + expected
        seen += 1
    assert seen == 375


def test_boxes_open_or_not_as_nists_gcm(address: list[bytes]) -> None:
    opened = refused = 0
    for (key, nonce, data, plain, sealed), opens in gcm("gcmDecrypt", 256):
        address[0] = data
        if opens:
            assert box.unseal(key, b"run", 1, 2, nonce + sealed) == plain
            opened += 1
        else:
            with pytest.raises(PeerError, match="does not open"):
                box.unseal(key, b"run", 1, 2, nonce + sealed)
            refused += 1
    assert opened + refused == 375
    assert refused > 100
