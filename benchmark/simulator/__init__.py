"""The simulated engine: SGLang's command line, log, HTTP and failures, with no GPU behind them.

Sizes and times come from `benchmark.engine`, the same model that a plan uses. Nothing that it reports says
how fast a real host is.
"""
