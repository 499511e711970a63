"""The fast paths on the CPU: numba kernels that run on torch's own threads."""
