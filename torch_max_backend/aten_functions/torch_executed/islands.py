"""Ops that stay with torch on purpose, and why: factorisations, Fourier transforms, complex numbers."""

from __future__ import annotations

from torch_max_backend.aten_functions.registry import aten, keep_as_island

_LAPACK = (
    "_linalg_det",
    "_linalg_eigh",
    "_linalg_eigvals",
    "_linalg_slogdet",
    "_linalg_solve_ex",
    "_linalg_svd",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "geqrf",
    "linalg_cholesky_ex",
    "linalg_eig",
    "linalg_householder_product",
    "linalg_inv_ex",
    "linalg_ldl_factor_ex",
    "linalg_ldl_solve",
    "linalg_lstsq",
    "linalg_lu",
    "linalg_lu_factor_ex",
    "linalg_lu_solve",
    "linalg_matrix_exp",
    "linalg_qr",
    "linalg_solve_triangular",
    "lu_unpack",
    "ormqr",
    "triangular_solve",
)
_FOURIER = ("_fft_c2c", "_fft_c2r", "_fft_r2c")
_COMPLEX = ("complex", "polar", "view_as_complex", "view_as_real")

for _names, _reason in (
    (_LAPACK, "MAX has no factorisations; torch calls LAPACK"),
    (_FOURIER, "MAX has no Fourier transform"),
    (_COMPLEX, "MAX has no complex numbers"),
):
    keep_as_island(*(getattr(aten, name) for name in _names if hasattr(aten, name)), reason=_reason)
