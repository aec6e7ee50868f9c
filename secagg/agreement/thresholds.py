"""How many clients may collude and how many must agree, unless an agreement says otherwise."""

from secagg.arguments import whole


def default_colluders(n: int) -> int:
    """A third of the roster, as in Bonawitz et al. 2017, section 6.2, for an active server.

    >>> default_colluders(100)
    33
    """
    return whole("n", n, 0) // 3


def default_threshold(n: int, colluders: int) -> int:
    """The smallest t with 2t > n + colluders: any two sets of t clients then share an honest one.

    >>> default_threshold(100, 33)
    67
    """
    return (whole("n", n, 0) + whole("colluders", colluders, 0)) // 2 + 1
