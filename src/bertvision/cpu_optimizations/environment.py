"""Environment variables that make PyTorch faster and smaller on CPUs. They must be set before torch is imported."""

import os

SWITCH = "BERTVISION_CPU_OPTIMIZATIONS"
"""The variable that turns the optimizations for CPUs off where it is 0. Only the command line reads it."""
VARIABLES = {
    # Waiting OpenMP threads spin for a short time only; otherwise they starve one another on a busy machine.
    "GOMP_SPINCOUNT": "20000",
    # Large tensors are allocated and freed with every batch; huge pages make that faster.
    "THP_MEM_ALLOC_ENABLE": "1",
    # Kernels are cached by shape, each with memory of its own, and batches have many shapes.
    "LRU_CACHE_CAPACITY": "1",  # PyTorch's cache, in front of oneDNN's
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}


def set_environment() -> None:
    """Set the variables that are not set yet. The command line does this; `import bertvision` does not."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
