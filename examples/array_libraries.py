"""scikit-learn and SciPy on arrays of this library: ``python examples/array_libraries.py``.

Both take any array of the standard once they are told to; the results are arrays of the same library.
"""

from __future__ import annotations

import os

os.environ["SCIPY_ARRAY_API"] = "1"  # read by SciPy when it is imported

from typing import Any

import numpy as np
import scipy.special
import scipy.stats
import sklearn
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import torch_max_backend.array as xp


def show(name: str, of_arrays: Any, of_numpy: Any) -> None:
    """Print whether two results agree."""
    assert isinstance(of_arrays, xp.Array)
    np.testing.assert_allclose(np.asarray(of_arrays), of_numpy, rtol=1e-6, atol=1e-8)
    print(f"{name}: the same as on NumPy")


def main() -> None:
    """Fit and transform, on NumPy and on arrays."""
    random = np.random.default_rng(0)
    n = random.standard_normal((500, 8))
    target = n @ np.arange(8.0) + 1
    x, y = xp.asarray(n), xp.asarray(target)
    with sklearn.config_context(array_api_dispatch=True):
        show("StandardScaler", StandardScaler().fit_transform(x), StandardScaler().fit_transform(n))
        show("Ridge", Ridge(solver="svd").fit(x, y).coef_, Ridge(solver="svd").fit(n, target).coef_)
        variance = PCA(3, svd_solver="full").fit(x).explained_variance_
        show("PCA", variance, PCA(3, svd_solver="full").fit(n).explained_variance_)
    show("logsumexp", scipy.special.logsumexp(x, axis=1), scipy.special.logsumexp(n, axis=1))
    show("zscore", scipy.stats.zscore(x, axis=0), scipy.stats.zscore(n, axis=0))
    show("skew", scipy.stats.skew(x, axis=0), scipy.stats.skew(n, axis=0))


if __name__ == "__main__":
    main()
