"""Load a model's config and tokenizer as the engine does, without a network: one JSON object on the last line.

Arguments: the folder, and `code` where the model's own code may run. Weights are not read.
"""

import json
import os
import sys

# Read when the libraries are imported.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")


def main():
    folder, trusted = sys.argv[1], sys.argv[2:] == ["code"]
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)
    tokens = tokenizer.encode("A short sentence, 1 2 3.")
    if not tokens:
        sys.exit("The tokenizer makes no tokens of a sentence. Fetch its files again.")
    answer = {"config": type(config).__name__, "tokenizer": type(tokenizer).__name__, "vocabulary": len(tokenizer)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
