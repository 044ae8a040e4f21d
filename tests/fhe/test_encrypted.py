"""Medians of really encrypted numbers equal numpy's: `make fhe`."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.fhe import compiled
from tests.fhe.rivals import rivals


@pytest.mark.parametrize(("d", "runs"), [(5, 6), (9, 4), (25, 2)])
def test_encrypted_medians_at_4_bits(d: int, runs: int) -> None:
    circuit = compiled(d, bits=4)
    circuit.keygen()
    rng = np.random.default_rng(d)
    inputs = [15 * rng.integers(0, 2, d), *rng.integers(0, 16, (runs - 1, d))]
    assert [int(circuit.encrypt_run_decrypt(x)) for x in inputs] == [int(np.median(x)) for x in inputs]


def test_another_rank() -> None:
    circuit = compiled(5, bits=3, rank=5)
    assert int(circuit.encrypt_run_decrypt(np.array([3, 7, 0, 6, 1]))) == 7


def test_fewer_bootstraps_and_less_work_than_every_rival() -> None:
    ours, *others = [compiled(9, bits=4, function=way, **settings) for way, settings in rivals().values()]
    assert ours.programmable_bootstrap_count == 19
    assert all(ours.programmable_bootstrap_count < other.programmable_bootstrap_count for other in others)
    assert all(ours.complexity < other.complexity for other in others)


def test_every_value_has_room_whatever_the_samples_reach() -> None:
    """The samples of the compiler miss ranges of two comparators at d = 20; the hints state them."""
    circuit = compiled(20, bits=4)
    widths = [node.properties.get("bit_width_hint", 0) for node in circuit.graph.query_nodes()]
    assert widths.count(5) >= circuit.programmable_bootstrap_count
    rng = np.random.default_rng(0)
    for x in 15 * (rng.random((100, 20)) < rng.random((100, 1))):
        assert int(circuit.simulate(x)) == int(np.sort(x)[9])
