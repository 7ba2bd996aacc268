"""Shardsweep: measures how a mixture-of-experts model is best split over the GPUs of a PCIe host.

Kept free of imports: Ansible's filter plugins import `benchmark.engine` through this package on a
controller that has nothing but the standard library.
"""

__version__ = "0.1.0"
