import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.engine.formats import BF16, Format, matches, read_formats
from benchmark.engine.models import ModelShape, UnknownModel, Vision, from_config, load_model, shipped_models

CAPTURES = Path(__file__).parents[2] / "captures" / "models"


def test_kimi_k2_6_is_what_its_config_says():
    shape = load_model("kimi-k2.6")
    assert (shape.layers, shape.hidden, shape.vocab, shape.heads) == (61, 7168, 163840, 64)
    assert (shape.attention, shape.q_lora_rank, shape.kv_lora_rank, shape.rope_dim) == ("mla", 1536, 512, 64)
    assert (shape.experts, shape.experts_per_token, shape.moe_intermediate) == (384, 8, 2048)
    assert (shape.shared_intermediate, shape.moe_layers, shape.moe[0]) == (2048, 60, False)
    assert shape.formats.experts == Format("int4", 4, group=32, scale_bytes=2)
    # Its ignore list keeps everything but the routed experts in bf16.
    assert {shape.formats.attention, shape.formats.shared, shape.formats.dense, shape.formats.lm_head} == {BF16}
    assert shape.vision == Vision(layers=27, hidden=1152, intermediate=4304, named_layers=27)


@pytest.mark.parametrize("source", ["moonshotai/Kimi-K2.6", "Kimi-K2.6", "kimi-k2.6"])
def test_a_shipped_shape_by_any_of_its_names(source):
    assert load_model(source) == load_model("kimi-k2.6")


@pytest.mark.parametrize("name", ["mini-moe", "k2-slice"])
def test_a_folder_its_config_and_the_shipped_shape_are_one(name):
    folder = load_model(CAPTURES / name)
    assert folder == load_model(CAPTURES / name / "config.json") == load_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "kimi-k2",
        "kimi-k2.5",
        "kimi-k2.6",
        "deepseek-v3",
        "deepseek-r1",
        "glm-4.5",
        "qwen3-235b-a22b",
        "qwen3-30b-a3b",
        "gpt-oss-120b",
        "minimax-m2",
        "mixtral-8x7b",
        "llama-3.1-70b",
        "llama-3.1-8b",
    ],
)
def test_the_promised_shapes_are_shipped(name):
    assert name in shipped_models()


@pytest.mark.parametrize("name", shipped_models())
def test_every_shipped_shape_can_be_read(name):
    shape = load_model(name)
    assert isinstance(shape, ModelShape)
    assert len(shape.moe) == shape.layers
    assert hash(shape) == hash(load_model(name))


@pytest.mark.parametrize(
    ("name", "kind", "kv_heads", "head_dim"),
    [("llama-3.1-70b", "gqa", 8, 128), ("qwen3-30b-a3b", "gqa", 4, 128), ("gpt-oss-120b", "gqa", 8, 64)],
)
def test_grouped_query_attention(name, kind, kv_heads, head_dim):
    shape = load_model(name)
    assert (shape.attention, shape.kv_heads, shape.head_dim) == (kind, kv_heads, head_dim)


def test_mixture_layers_by_each_field_that_tells_them():
    assert load_model("deepseek-v3").moe[:4] == (False, False, False, True)
    # interleave_moe_layer_step 2: every second layer.
    assert load_model("llama-4-maverick-17b-128e-instruct").moe[:4] == (False, True, False, True)
    assert load_model("llama-3.1-8b").moe_layers == 0


def test_the_wrapper_of_a_multimodal_model_is_looked_through():
    inner = json.loads((CAPTURES / "k2-slice" / "config.json").read_text())
    quantization = inner.pop("quantization_config")
    wrapped = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": inner | {"quantization_config": quantization},
        "vision_config": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304},
    }
    shape = from_config(wrapped, "wrapped")
    assert shape.vision == Vision(27, 1152, 4304, named_layers=27)
    assert shape.formats.experts.name == "int4"
    assert shape.architecture == "KimiK25ForConditionalGeneration"


def test_an_unknown_architecture_is_said_to_be_unknown():
    config = {"architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "num_hidden_layers": 61}
    with pytest.raises(UnknownModel, match="DeepseekV4ForCausalLM is not known to the planner"):
        from_config(config, "new")


def test_a_missing_field_is_named():
    config = json.loads((CAPTURES / "mini-moe" / "config.json").read_text())
    del config["kv_lora_rank"]
    with pytest.raises(UnknownModel, match="has no kv_lora_rank"):
        from_config(config, "broken")


def test_what_is_neither_file_nor_name_lists_the_names():
    with pytest.raises(UnknownModel, match=r"Shipped: .*kimi-k2\.6"):
        load_model("no-such-model")


def test_a_config_that_is_not_json(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnknownModel, match="cannot be read as JSON"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("form", "outputs", "inputs", "size"),
    [
        # INT4 in groups of 32 with bf16 scales: 0.5 + 2/32 bytes a weight.
        (Format("int4", 4, group=32, scale_bytes=2), 4096, 7168, 4096 * 7168 * 9 // 16),
        # FP8 in 128 x 128 blocks with float32 scales: 576 inputs need five blocks.
        (Format("fp8", 8, block=(128, 128), scale_bytes=4), 1536, 576, 1536 * 576 + 12 * 5 * 4),
        (Format("nvfp4", 4, group=16, scale_bytes=1), 2048, 6144, 2048 * 6144 * 9 // 16),
        (BF16, 10, 10, 200),
    ],
)
def test_bytes_of_a_matrix(form, outputs, inputs, size):
    assert form.total(outputs, inputs) == size


def test_ignore_lists_of_three_kinds():
    assert matches(["re:.*self_attn.*"], "model.layers.5.self_attn.o_proj")
    assert matches(["language_model.lm_head"], "lm_head")
    assert matches(["model.layers.*.self_attn"], "model.layers.5.self_attn.o_proj")
    assert not matches(["gate", "lm_head"], "model.layers.5.mlp.experts.0.down_proj")


def test_an_unknown_quantization_is_refused():
    with pytest.raises(ValueError, match="bitsandbytes"):
        read_formats({"quant_method": "bitsandbytes"})


_VALUES = (
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=5) | st.lists(st.integers())
)


@settings(max_examples=200)
@given(name=st.sampled_from(["mini-moe", "k2-slice"]), changes=st.dictionaries(st.integers(0, 60), _VALUES, max_size=3))
def test_a_damaged_config_is_read_or_refused_in_words(name, changes):
    config = json.loads((CAPTURES / name / "config.json").read_text())
    keys = sorted(config)
    for number, value in changes.items():
        config[keys[number % len(keys)]] = value
    try:
        shape = from_config(config, "damaged")
    except UnknownModel as error:
        assert "damaged" in str(error)
    else:
        assert min(shape.layers, shape.hidden, shape.heads) > 0


@given(st.recursive(_VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner)))
def test_any_json_is_read_or_refused_in_words(value):
    with pytest.raises(UnknownModel):
        from_config(value, "wild")


def test_overrides_make_another_model():
    """docs/evidence/h200-one-gpu: 400 layers of mini-moe instead of 12 did not fit one H200."""
    shape = load_model("mini-moe")
    deeper = shape.overridden({"json_model_override_args": '{"num_hidden_layers": 400}'})
    assert (shape.layers, deeper.layers, deeper.moe_layers) == (12, 400, 399)
    assert deeper.name == shape.name
    assert shape.overridden({}) is shape
    assert shape.overridden({"json_model_override_args": {"num_hidden_layers": 400}}) == deeper
    with pytest.raises(UnknownModel, match="not known to the planner"):
        shape.overridden({"json_model_override_args": '{"architectures": ["Sibyl"], "model_type": "sibyl"}'})
    with pytest.raises(ValueError, match="no JSON object"):
        shape.overridden({"json_model_override_args": "[400]"})


@pytest.mark.parametrize(
    ("file", "content", "method", "bits"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "gptq", 4),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64}, "awq", 4),
        ("hf_quant_config.json", {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, "", 4),
    ],
)
def test_quantization_beside_the_config_is_read(tmp_path, file, content, method, bits):
    config = load_model("qwen3-30b-a3b").config
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not load_model(tmp_path).formats.experts.quantized
    (tmp_path / file).write_text(json.dumps(content))
    shape = load_model(tmp_path)
    assert shape.formats.experts.bits == bits
    assert shape.quantization == (method or "NVFP4")
