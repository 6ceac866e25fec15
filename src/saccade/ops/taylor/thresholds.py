"""Number of tokens above which linear time is cheaper, counted as in arXiv:2403.02920.

For one head of width d and N tokens the paper counts

    direct     FLOPs 4 N^2 d + 6 N^2                entries 2 N^2 + d N
    efficient  FLOPs N (4 d^3 + 10 d^2 + 9 d + 4)   entries d^2 (d+1) + (3 d + 1) N + d^2 N

and calls the break-even points N0 (speed) and N1 (memory). With symmetric features d^2 becomes
d(d+1)/2 in both counts, which roughly halves the thresholds.
"""

from math import sqrt

from saccade.errors import ConfigError

__all__ = ["direct_flops", "efficient_flops", "memory_threshold", "speed_threshold"]


def direct_flops(queries: int, keys: int, d: int) -> int:
    """FLOPs of the direct form for one head."""
    return queries * keys * (4 * d + 6)


def efficient_flops(queries: int, keys: int, d: int, *, symmetric: bool = True) -> int:
    """FLOPs of the efficient form for one head.

    Half belongs to the keys (state) and half to the queries. Symmetric features need
    2 F (d+1) for the product with the state and d(d+1)/2 to be formed, F = d(d+1)/2 + d + 1.
    """
    if symmetric:
        pairs = d * (d + 1) // 2
        return (queries + keys) * (2 * (pairs + d + 1) * (d + 1) + pairs + d)
    return (queries + keys) * (4 * d**3 + 10 * d**2 + 9 * d + 4) // 2


def speed_threshold(d: int, *, symmetric: bool = False) -> int:
    """N0: the number of tokens at which both forms need equal FLOPs.

    Args:
        d: Head dim.
        symmetric: Count d(d+1)/2 features, as this library does, instead of the paper's d^2.
    """
    _check(d)
    return round(efficient_flops(1, 1, d, symmetric=symmetric) / direct_flops(1, 1, d))


def memory_threshold(d: int, *, symmetric: bool = False) -> int:
    """N1: the number of tokens at which both forms store equally many numbers.

    Args:
        d: Head dim.
        symmetric: Count d(d+1)/2 features instead of the paper's d^2. (Both count the
            features of all tokens. Our efficient path works in chunks and stores fewer.)
    """
    _check(d)
    quadratic = d * (d + 1) // 2 if symmetric else d * d
    linear = quadratic + 2 * d + 1
    return round((linear + sqrt(linear**2 + 8 * quadratic * (d + 1))) / 4)


def _check(d: int) -> None:
    if d < 1:
        raise ConfigError(f"d must be at least 1, got {d!r}")
