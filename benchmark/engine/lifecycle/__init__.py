"""A start of the engine read from its log: stages, figures, and why it failed."""

from .failure import LEFT_OUT, Failure
from .log import LARGEST_TEXT, STAGES, Lifecycle, classify_exit, joined, read_log

__all__ = ["LARGEST_TEXT", "LEFT_OUT", "STAGES", "Failure", "Lifecycle", "classify_exit", "joined", "read_log"]
