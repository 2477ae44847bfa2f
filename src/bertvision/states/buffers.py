"""Memory for batches, used again: fresh pages cost more than what is written into them."""

import math
import sys
import threading

import numpy as np
import torch
from torch import Tensor

UNUSED = 3  # references to an array that no tensor uses: the list's, the loop's, and that of asking


class Buffers:
    """Tensors in memory that is taken back when the last of its views is gone.

    They are one reader's, for one pass: what waits between two passes would be in the way of whatever else is done.
    """

    def __init__(self, room: int = 0):
        """`room`: bytes that a new one has at least, so that it will do for what comes later."""
        self.room = room
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor with anything in it."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            # A tensor made of an array holds a reference to it until the storage, which all views share, is freed.
            free = [array for array in self._arrays if sys.getrefcount(array) == UNUSED]
            fitting = [array for array in free if len(array) >= size]
            if fitting:
                array = min(fitting, key=len)
            else:
                self._arrays = [array for array in self._arrays if all(array is not small for small in free)]
                self._arrays.append(array := np.empty(max(size, self.room), dtype=np.uint8))
            return torch.from_numpy(array)[:size].view(dtype).view(shape)
