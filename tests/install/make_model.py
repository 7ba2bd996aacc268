"""make_model.py FOLDER [BYTES]: a whole model of two tensors of 16 bytes, with a tokenizer that transformers loads."""

import json
import struct
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


def weights(path, names, size):
    header, offset = {}, 0
    for name in names:
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def tokenizer():
    """Byte-level BPE without merges: each byte is a token, under the printable name that GPT-2 gave it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in names]
    names.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {names[byte]: byte for byte in range(256)}, "merges": []},
    }


def main():
    folder = Path(sys.argv[1])
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    folder.mkdir(parents=True, exist_ok=True)
    files = {f"model-0000{number}-of-00002.safetensors": [f"layer.{number}.weight"] for number in (1, 2)}
    for name, tensors in files.items():
        weights(folder / name, tensors, size)
    index = {"weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


if __name__ == "__main__":
    main()
