from numba import njit as _njit
def njit(f): return _njit(cache=True,nogil=True)(f)
