"""What is written from records and a decision: a page, Markdown, CSV, a schema, and comparisons of two campaigns."""

from .page import write_report

__all__ = ["write_report"]
