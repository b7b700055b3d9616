"""The formulas at their edges."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from spamguard.bayes import formulas
from tests.unit.bayes.support import repeatable, seeds


class TestGaussian:
    @repeatable
    @given(seeds)
    def test_one_floor_for_variances_and_matrices(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        variance, floor, mean = (
            random.exponential(size=(2, 3)),
            random.exponential(size=3),
            random.normal(size=(2, 3)),
        )
        x = random.normal(size=(5, 3))
        matrices = np.stack([np.diag(row) for row in variance])
        by_features = formulas.gaussian_log_density(x, mean, np.maximum(variance, floor)).sum(
            axis=-1
        )
        by_matrix = formulas.whitened_log_density(x, mean, formulas.whitening(matrices, floor))
        np.testing.assert_allclose(by_matrix, by_features, rtol=1e-9)
