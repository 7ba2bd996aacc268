"""Single prefills of exactly 1, 8, 64 and 256 random tokens, for the hook that counts the experts a batch touches.

touch.py PORT      a prefill runs without a CUDA graph, so the hook sees it, whatever graphs the engine has for decoding
"""

from __future__ import annotations

import json
import random
import sys
import urllib.request

SIZES, TIMES, FIRST, LAST = (1, 8, 64, 256), 12, 300, 30_000


def main(port: str) -> None:
    draw = random.Random(7)
    for size in SIZES * TIMES:
        body = {
            "input_ids": [draw.randrange(FIRST, LAST) for _ in range(size)],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=20).read()


if __name__ == "__main__":
    main(sys.argv[1])
