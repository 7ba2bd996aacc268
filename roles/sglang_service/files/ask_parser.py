"""Asks the engine's own argument parser about command lines. Runs in the engine's Python; loads no model, needs no GPU.

    python -c "$(cat ask_parser.py)" sglang|simulated RELEASE < {"NAME": ["--flag", "value", ...]}

The last line of standard output is JSON: the parser's message for each name that it refuses.
"""

import argparse
import contextlib
import io
import json
import sys


def build(engine, release):
    if engine == "simulated":
        from benchmark.simulator.launch.arguments import build_parser

        return build_parser(release)
    from sglang.srt.server_args import ServerArgs

    # As its launcher does: a plugin may add flags.
    with contextlib.suppress(ImportError):
        from sglang.srt.plugins import load_plugins

        load_plugins()
    parser = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(parser)
    return parser


def main(engine, release):
    refused = {}
    for name, words in json.load(sys.stdin).items():
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                build(engine, release).parse_args(words)
        except SystemExit as end:
            # argparse: usage, then `PROGRAM: error: MESSAGE`. Anything else is not its verdict.
            _, found, message = said.getvalue().rpartition("error: ")
            if end.code == 2 and found:
                refused[name] = " ".join(message.split())
    sys.stdout.write(json.dumps(refused) + "\n")


main(*sys.argv[1:])
