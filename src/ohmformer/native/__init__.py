"""Kernels in C, built with the package and used by default; torch computes everything they do not support.

>>> from ohmformer import native
>>> with native.used("off"):  # torch alone, in this thread
...     print(native.active())
None

``OHMFORMER_NATIVE`` chooses for a whole process: ``off``, or the name of an instruction set (:func:`available`).
"""

from ohmformer.native.kernels import KERNELS, Kernel
from ohmformer.native.loader import Library, Stopped, active, available, call, describe, enable, polled, used

__all__ = ["KERNELS", "Kernel", "Library", "Stopped", "active", "available", "call", "describe", "enable", "polled", "used"]
