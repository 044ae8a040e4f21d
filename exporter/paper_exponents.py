"""`--schedule paper`: the literal exponents of Theorem 3.3, and which inequality fails where they do not fit."""

from __future__ import annotations

from math import ceil, floor, log, log10

from exporter.errors import UserError
from exporter.schedule import FirstSample, HardRound, HashEnding, LinearSchedule, check_task, next_prime

# (y', z', w') of rounds 1 to 4, and y' of what is left (step 1 of alg:informalAlgo)
EXPONENTS = ((1.0, 0.5, 0.26), (0.76, 0.5, 0.26), (0.52, 0.5, 0.26), (0.28, 0.26, 0.14))
LEFT = 0.16
SLACK = 0.01
GAMMA = 0.18


def paper_linear46(d: int, low: int, high: int) -> LinearSchedule:
    """The schedule of alg:sparsifyingFunctionNeuralNet as printed, or UserError with the inequality that fails at this d."""
    check_task(d, low, high, 0.5)
    hard: list[HardRound] = []
    for i, (y, z, w) in enumerate(EXPONENTS, 1):
        size, margin = ceil(d**z), floor(d**w)
        if i == 1:
            continue
        blocks, block = ceil(size / d**SLACK), ceil(3**i * d ** (1 + SLACK) / d**y)
        if blocks * block > d:
            least = i * log10(3) / (y - z)  # 3^i d^(z' - y') <= 1
            raise UserError(
                f"the paper's exponents do not fit d = {d}: round {i} takes {blocks} blocks of {block} = "
                f"{blocks * block} entries (ceil(z/d^0.01) blocks of ceil(3^{i} d^1.01/y), which needs "
                f"3^{i} d^({z:g} - {y:g}) <= 1, d >= 10^{least:.1f}); use --schedule tuned"
            )
        hard.append(HardRound(blocks, block, ceil(d**SLACK), margin, margin))
    epsilon = LEFT + 4 * log(6) / log(d)
    prime = next_prime(floor(d ** (2 * epsilon + GAMMA)) + 1)
    size, margin = ceil(d ** EXPONENTS[0][1]), floor(d ** EXPONENTS[0][2])
    sample = FirstSample(size, max(0, floor(low * size / d) - margin), min(size + 1, ceil(high * size / d) + margin))
    ending = HashEnding(prime, prime, floor(6**4 * d**LEFT))
    return LinearSchedule(d, low, high, (), (), "linear46", "paper", sample, tuple(hard), (), ending)
