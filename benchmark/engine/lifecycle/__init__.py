"""A start of the engine read from its log: stages, figures, and why it failed."""

from .failure import Failure
from .log import STAGES, Lifecycle, classify_exit, read_log

__all__ = ["STAGES", "Failure", "Lifecycle", "classify_exit", "read_log"]
