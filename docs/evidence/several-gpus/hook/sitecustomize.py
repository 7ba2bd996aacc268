"""Loaded by each Python of the engine (PYTHONPATH): gives a dummy-loaded model a router that spreads its tokens.

SGLang's dummy loader fills every tensor from one seed within 1e-3. The router's bias then decides, every token goes to
the same few experts, and a step at more than one request is not a real model's. After the loader has run, this draws
each router's weight anew (one seed a layer, logits of about unit variance), sets its bias to 0, and draws the output
layer anew (it is the transpose of the embedding otherwise, and greedy answers fall into pairs of tokens).

With EXPERTS_FILE set rank 0 also writes how many distinct experts a batch of 1, 8, 64 or 256 tokens touched, and how
many choices fell on the first half of the experts (the first rank's, where experts are spread over two), a line a layer
and step (only where steps run without CUDA graphs: --disable-cuda-graph).
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
from pathlib import Path

_LOADER, _MODEL = "sglang.srt.model_loader.loader", "sglang.srt.models.deepseek_v2"
_TOP_K = 8
_SIZES = (1, 8, 64, 256)
_MOST_LINES = 4000


def _patch_loader(module):
    import torch

    original = module.initialize_dummy_weights

    def initialize(model, *arguments, **named):
        original(model, *arguments, **named)
        layer = 0
        for name, part in model.named_modules():
            if type(part).__name__ == "MoEGate":
                _draw(part.weight, 1000 + layer, 40.0 * (2048 / part.weight.shape[1]) ** 0.5)
                if part.e_score_correction_bias is not None:
                    part.e_score_correction_bias.data.zero_()
                part.hook_layer = layer
                layer += 1
            elif name == "lm_head" and hasattr(part, "weight"):  # a pipeline's first stage has none
                _draw(part.weight, 77, 6e-4)
        sys.stderr.write(f"hook: {layer} routers drawn anew\n")

    def _draw(weight, seed, deviation):
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(seed)
        weight.data.normal_(0.0, deviation, generator=generator)

    module.initialize_dummy_weights = initialize


def _patch_model(module):
    path = os.environ.get("EXPERTS_FILE")
    if not path:
        return
    import torch

    forward = module.MoEGate.forward
    written = dict.fromkeys(_SIZES, 0)

    def counted(self, hidden_states, *arguments, **named):
        logits = forward(self, hidden_states, *arguments, **named)
        tokens = hidden_states.shape[0]
        first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        if (
            first
            and tokens in written
            and written[tokens] < _MOST_LINES
            and not torch.cuda.is_current_stream_capturing()
        ):
            written[tokens] += 1
            chosen = torch.topk(logits.float(), _TOP_K, dim=-1).indices
            load = torch.bincount(chosen.flatten(), minlength=logits.shape[-1])
            line = {
                "layer": getattr(self, "hook_layer", None),
                "tokens": tokens,
                "distinct": int((load > 0).sum()),
                "busiest": int(load.max()),
                "first_half": int(load[: load.shape[0] // 2].sum()),
                "distinct_first_half": int((load[: load.shape[0] // 2] > 0).sum()),
                "experts": int(logits.shape[-1]),
            }
            with Path(path).open("a") as stream:
                stream.write(json.dumps(line) + "\n")
        return logits

    module.MoEGate.forward = counted


_PATCHES = {_LOADER: _patch_loader, _MODEL: _patch_model}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        patch = _PATCHES.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
