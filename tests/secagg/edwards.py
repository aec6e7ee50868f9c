"""Ed25519 by the book (RFC 8032, section 5.1), slowly, for signatures that only an attacker would make."""

from hashlib import sha512

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, PRIME) % PRIME
_ROOT = pow(2, (PRIME - 1) // 4, PRIME)  # of -1

Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(p: Point, q: Point) -> Point:
    (a, b), (c, d) = p, q
    e = _D * a * b * c * d % PRIME
    x = (a * d + b * c) * pow(1 + e, -1, PRIME)
    y = (b * d + a * c) * pow(1 - e, -1, PRIME)
    return x % PRIME, y % PRIME


def times(scalar: int, p: Point) -> Point:
    total = NEUTRAL
    while scalar:
        if scalar & 1:
            total = add(total, p)
        p, scalar = add(p, p), scalar >> 1
    return total


def encode(p: Point) -> bytes:
    return (p[1] | (p[0] & 1) << 255).to_bytes(32, "little")


def with_y(y: int, sign: int = 0) -> Point:
    """The point of this y whose x has this last bit. ValueError if there is none."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * _ROOT % PRIME
    if x * x % PRIME != square:
        raise ValueError("no point of the curve")
    return (x if x & 1 == sign else -x % PRIME), y


BASE = with_y(4 * pow(5, -1, PRIME) % PRIME)


def small_order() -> list[Point]:
    """All eight points whose order divides eight: multiples of L times any point that is not of order L."""
    for y in range(2, 100):
        try:
            point = times(ORDER, with_y(y))
        except ValueError:
            continue
        if times(4, point) != NEUTRAL:
            return [times(k, point) for k in range(8)]
    raise AssertionError("there are such points")


def challenge(commitment: Point, identity: Point, message: bytes) -> int:
    hashed = sha512(encode(commitment) + encode(identity) + message).digest()
    return int.from_bytes(hashed, "little") % ORDER


def signature(commitment: Point, scalar: int) -> bytes:
    return encode(commitment) + (scalar % ORDER).to_bytes(32, "little")
