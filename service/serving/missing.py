"""Numbers that are missing: NaN, in JSON also null, and empty cells of tables.

error      a vector with one of them is refused (as one with an infinity is, always)
omit       they are left out, and the rest of the vector is asked about; of nothing the answer is NaN
propagate  the answer to such a vector is NaN
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from service.serving.bodies import Bundle, Question, group
from service.serving.json_body import PIECE, Reading
from service.statistics.scaling import Floats


def without_missing(question: Question) -> Reading[Question]:
    """What is left to ask about; vectors that are answered with NaN are in no group any more."""
    yield None  # at once is for those with nothing to look for
    groups: list[Bundle] = []
    rest: list[Floats] = []
    places: list[int] = []
    for bundle in question.groups:
        k, n = bundle.values.shape
        some = max(1, PIECE // n)
        whole: list[int] = []
        for start in range(0, k, some):
            bad = np.isnan(bundle.values[start : start + some])
            for row, any_bad in enumerate(np.any(bad, axis=1).tolist(), start):
                if not any_bad:
                    whole.append(row)
                elif question.options.nan == "omit" and len(left := bundle.values[row, ~bad[row - start]]):
                    rest.append(left)
                    places.append(bundle.positions[row])
            yield None
        if len(whole) == k:
            groups.append(bundle)
        elif whole:
            groups.append(Bundle(bundle.values[whole], [bundle.positions[row] for row in whole]))
    if rest:
        flat = np.concatenate(rest)
        for bundle in (yield from group(flat, list(map(len, rest)))):
            groups.append(Bundle(bundle.values, [places[i] for i in bundle.positions]))
    return replace(question, groups=groups, kind=question.groups[0].values.dtype)
