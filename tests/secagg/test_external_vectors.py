"""Vectors that nobody here wrote, through this project's own doors, kernels and plain reference.

`cryptography-vectors` carries them: RFC 7748 (X25519), the 1024 signatures of the Ed25519 authors, RFC 5869
(HKDF-SHA256), RFC 4231 (HMAC) and NIST's messages (SHA-256), NIST's AES known answers and RFC 3686 (AES-CTR), NIST's
CAVS for AES-GCM. What this project narrows is part of what is checked: public keys with the unused bit set are refused,
HKDF has no salt and gives at most 32 bytes, boxes have nonces of 96 bits and tags of 128. Masks begin at counter 0, and
the compiled kernels count with 64 bits, so RFC 3686, whose counters are longer, holds for the backend `openssl` and for
what every kernel is compared with before its first use; the kernels themselves have the known answers.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import cryptography_vectors
import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from secagg import PeerError, reference
from secagg.crypto import box, hashing, keys, prg
from secagg.crypto.keys import AgreementKey, Identity, hkdf, hkdf_each, verify
from secagg.types import Bytes

FOLDER = Path(cryptography_vectors.__file__).parent


def cases(name: str, first: str = "COUNT", keep: bool = False) -> Iterator[dict[str, str]]:
    """The cases of a file of `name = value` lines, with the headings in square brackets that hold for each.

    A case begins with the name `first`, whose value is left out unless it is to be kept.
    """
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
            case = {**headings, **({key: value} if keep else {})}
        else:
            case[key] = value if equals else "yes"
    yield case


def test_x25519_of_rfc_7748() -> None:
    seen = [(c["INPUT_SCALAR"], c["INPUT_U"], c["OUTPUT_U"]) for c in cases("asymmetric/X25519/rfc7748.txt")]
    assert len(seen) == 3
    for scalar, u, output in (tuple(map(bytes.fromhex, row)) for row in seen):
        assert reference.agree(scalar, u) == output
        if u == bytes([9]) + bytes(31):  # the base point
            assert reference.public_half(scalar) == AgreementKey.from_private(scalar).public == output
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


def rows_of(text: bytes) -> Bytes:
    """The same bytes in so many rows that the compiled kernel takes them."""
    return np.tile(np.frombuffer(bytearray(text), np.uint8), (hashing.KERNEL_ROWS, 1))


def same(rows: Bytes) -> bytes:
    """The one content of all rows."""
    assert (rows == rows[0]).all()
    return rows[0].tobytes()


@pytest.mark.parametrize(("name", "count"), [("SHA256ShortMsg", 65), ("SHA256LongMsg", 64)])
def test_sha256_of_nist(name: str, count: int) -> None:
    found = [(c["Msg"], c["MD"], c["Len"]) for c in cases(f"hashes/SHA2/{name}.rsp", first="LEN", keep=True)]
    assert len(found) == count
    for message, digest, bits in found:
        text = bytes.fromhex(message)[: int(bits) // 8]
        assert reference.digest(text).hex() == digest
        assert same(hashing.sha256_each(b"", rows_of(text))).hex() == digest
        half = len(text) // 2  # what stands in the label, and what in the rows, does not matter
        assert same(hashing.sha256_each(text[:half], rows_of(text[half:]))).hex() == digest


def test_hmac_of_rfc_4231() -> None:
    """What the kernel's HKDF is made of; its keys have at most 32 bytes, and HMAC fills keys with zeros."""
    seen = 0
    for case in cases("HMAC/rfc-4231-sha256.txt", first="LEN"):
        key, message = bytes.fromhex(case["Key"]), bytes.fromhex(case["Msg"])
        if len(key) <= 32:
            assert same(keys._hmac_each(rows_of(key.ljust(32, b"\0")), rows_of(message))).hex().startswith(case["MD"])
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("name", ["rfc-5869-HKDF-SHA256", "hkdf-generated"])
def test_hkdf_without_a_salt(name: str) -> None:
    """RFC 5869, and 1200 bytes that OpenSSL made."""
    (case,) = (c for c in cases(f"KDF/{name}.txt") if not c["salt"])
    secret, info, expected = (bytes.fromhex(case[name]) for name in ("IKM", "info", "OKM"))
    assert hkdf(secret, info) == expected[:32]
    assert reference.hkdf(secret, info, int(case["L"])) == expected


def test_hkdf_by_the_kernel() -> None:
    """Both steps of RFC 5869, also with its salt of 13 bytes; the secrets of `hkdf_each` itself have 32 bytes."""
    seen = 0
    for case in cases("KDF/rfc-5869-HKDF-SHA256.txt"):
        salt, secret, info, expected = (bytes.fromhex(case[name]) for name in ("salt", "IKM", "info", "OKM"))
        if len(salt) <= 32:
            extracted = keys._hmac_each(rows_of(salt.ljust(32, b"\0")), rows_of(secret))
            assert same(extracted).hex() == case["PRK"]
            assert same(keys._hmac_each(extracted, rows_of(info + b"\1"))) == expected[:32]
            seen += 1
    assert seen == 2


def test_many_hkdf_at_once_equal_one_after_the_other() -> None:
    secrets, infos = (np.frombuffer(os.urandom(32 * 300), np.uint8).reshape(300, 32) for _ in range(2))
    found = hkdf_each(secrets, infos)
    for row, secret, info in zip(found, secrets, infos, strict=True):
        assert row.tobytes() == hkdf(secret.tobytes(), info.tobytes()) == reference.hkdf(bytes(secret), bytes(info))


def test_counter_mode_of_rfc_3686() -> None:
    """The backend `openssl`, and the stream that every backend is compared with before its first use."""
    chosen = [c for c in cases("ciphers/AES/CTR/aes-128-ctr.txt") if c["part"] == "ENCRYPT"]
    assert len(chosen) == 3
    for case in chosen:
        key, start, plain, expected = (bytes.fromhex(case[part]) for part in ("KEY", "IV", "PLAINTEXT", "CIPHERTEXT"))
        stream = bytes(a ^ b for a, b in zip(plain, expected, strict=True))
        first, words = 4 * int.from_bytes(start, "big"), len(stream) // 4
        for skip in range(5):
            found = np.zeros(words - min(skip, words), np.uint32)
            if len(found):
                rows = np.frombuffer(key, np.uint8)[None]
                prg._add_openssl(found, rows, np.array([1], np.int64), first + skip)
                assert found.astype("<u4").tobytes() == stream[4 * skip :]
                assert prg._stream(key, first + skip, len(found)).astype("<u4").tobytes() == stream[4 * skip :]


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
    """Where a box is addressed to; the vectors have additional data of their own, and keys that are not derived."""
    place = [b""]
    monkeypatch.setattr(box, "_address", lambda *ends: place[0])
    monkeypatch.setattr(reference, "hkdf", lambda secret, info: secret)
    return place


def test_boxes_encrypt_as_nists_gcm(address: list[bytes]) -> None:
    seen = 0
    for (key, nonce, data, plain, expected), _ in gcm("gcmEncryptExtIV", 256):
        address[0] = data
        made = box.seal(key, b"run", 1, 2, plain, lambda size, nonce=nonce: nonce)
        assert made == nonce + expected
        assert reference.seal(key, data, plain, lambda size, nonce=nonce: nonce) == nonce + expected
        seen += 1
    assert seen == 375


def test_boxes_open_or_not_as_nists_gcm(address: list[bytes]) -> None:
    opened = refused = 0
    for (key, nonce, data, plain, sealed), opens in gcm("gcmDecrypt", 256):
        address[0] = data
        if opens:
            assert box.unseal(key, b"run", 1, 2, nonce + sealed) == plain
            assert reference.unseal(key, data, nonce + sealed) == plain
            opened += 1
        else:
            with pytest.raises(PeerError, match="does not open"):
                box.unseal(key, b"run", 1, 2, nonce + sealed)
            with pytest.raises(InvalidTag):
                reference.unseal(key, data, nonce + sealed)
            refused += 1
    assert opened + refused == 375
    assert refused > 100
