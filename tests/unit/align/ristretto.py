"""ristretto255 in Python integers, from the formulas of RFC 9496, section 4.3: slow, and only for tests."""

from hashlib import sha512

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of -1
ROOT_AD_MINUS_ONE = 25063068953384623474111414158702152701244531502492656460079210482610430750235  # RFC 9496, 4.1
Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z


def root_of_ratio(u: int, v: int) -> tuple[bool, int]:
    """Whether u/v is a square, and the root that is not negative of u/v or of ROOT·u/v."""
    r = u * v**3 * pow(u * v**7, (P - 5) // 8, P) % P
    check = v * r * r % P
    flipped, flipped_i = check == -u % P, check == -u * ROOT % P
    if flipped or flipped_i:
        r = r * ROOT % P
    return check == u % P or flipped, P - r if _negative(r) else r


def expanded(message: bytes, tag: bytes, size: int = 64) -> bytes:
    """The uniform bytes of a message, step by step as RFC 9380 writes them in section 5.3.1."""
    tag_and_length = tag + bytes([len(tag)])
    first = sha512(bytes(128) + message + size.to_bytes(2, "big") + b"\0" + tag_and_length).digest()
    blocks = [sha512(first + b"\1" + tag_and_length).digest()]
    while 64 * len(blocks) < size:
        mixed = bytes(one ^ other for one, other in zip(first, blocks[-1], strict=True))
        blocks.append(sha512(mixed + bytes([len(blocks) + 1]) + tag_and_length).digest())
    return b"".join(blocks)[:size]


def mapped(uniform: bytes) -> Point:
    """The element of 64 uniform bytes."""
    halves = [int.from_bytes(half, "little") % 2**255 % P for half in (uniform[:32], uniform[32:])]
    return plus(*map(_elligator, halves))


def encoded(point: Point) -> bytes:
    """The 32 bytes of an element."""
    x0, y0, z0, t0 = point
    u1, u2 = (z0 + y0) * (z0 - y0) % P, x0 * y0 % P
    _, inverse = root_of_ratio(1, u1 * u2 * u2 % P)
    den1, den2 = inverse * u1 % P, inverse * u2 % P
    z_inv = den1 * den2 * t0 % P
    invsqrt_a_minus_d = root_of_ratio(1, (-1 - D) % P)[1]
    if _negative(t0 * z_inv % P):
        x, y, den = y0 * ROOT % P, x0 * ROOT % P, den1 * invsqrt_a_minus_d % P
    else:
        x, y, den = x0, y0, den2
    if _negative(x * z_inv % P):
        y = -y % P
    s = den * (z0 - y) % P
    return (P - s if _negative(s) else s).to_bytes(32, "little")


def plus(one: Point, other: Point) -> Point:
    """The sum of two elements."""
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, other
    a, b = (y1 - x1) * (y2 - x2) % P, (y1 + x1) * (y2 + x2) % P
    c, d = 2 * t1 * t2 * D % P, 2 * z1 * z2 % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(number: int, point: Point) -> Point:
    """A multiple of an element."""
    total: Point = (0, 1, 1, 0)
    while number:
        if number & 1:
            total = plus(total, point)
        point, number = plus(point, point), number >> 1
    return total


def _elligator(t: int) -> Point:
    r = ROOT * t * t % P
    u, v = (r + 1) * (1 - D * D) % P, (-1 - r * D) * (r + D) % P
    square, s = root_of_ratio(u, v)
    if square:
        c = -1
    else:
        s = s * t % P
        s, c = -s % P if not _negative(s) else s, r
    n = (c * (r - 1) * (D - 1) ** 2 - v) % P
    w0, w1 = 2 * s * v % P, n * ROOT_AD_MINUS_ONE % P
    w2, w3 = (1 - s * s) % P, (1 + s * s) % P
    return w0 * w3 % P, w2 * w1 % P, w1 * w3 % P, w0 * w2 % P


def _negative(number: int) -> bool:
    return number % P % 2 == 1
