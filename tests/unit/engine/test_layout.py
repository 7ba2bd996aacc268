import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.engine.layout import Layout


def test_tp4_ep2_takes_four_gpus():
    layout = Layout.from_engine({"tp_size": 4, "ep_size": 2}, "0.5.23")
    assert (layout.gpus, layout.moe_tp, layout.attention_tp) == (4, 2, 4)


def test_pipeline_stages_multiply_gpus_and_expert_groups_do_not():
    assert Layout.from_engine({"tp_size": 4, "pp_size": 2, "ep_size": 4}).gpus == 8


@pytest.mark.parametrize(
    "engine",
    [
        {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True},
        {"tp_size": 8, "attn_dp_size": 4},
        {"tensor_parallel_size": "8", "attention_data_parallel_size": 4},
    ],
)
def test_both_spellings_of_attention_dp(engine):
    layout = Layout.from_engine(engine)
    assert (layout.attention_dp, layout.dp, layout.attention_tp, layout.gpus) == (4, 1, 2, 8)


def test_plain_replicas_take_gpus():
    assert Layout.from_engine({"tp_size": 2, "dp_size": 4}).gpus == 8


def test_an_all_to_all_backend_sets_ep_to_tp():
    assert Layout.from_engine({"tp_size": 8, "ep_size": 2, "moe_a2a_backend": "deepep"}).ep == 8
    assert Layout.from_engine({"tp_size": 8, "ep_size": 2, "moe_a2a_backend": "none"}).ep == 2


@pytest.mark.parametrize(
    ("pp", "stages"), [(1, (61,)), (2, (30, 31)), (4, (15, 15, 15, 16)), (8, (7, 7, 7, 8, 8, 8, 8, 8))]
)
def test_the_last_stages_take_the_remainder(pp, stages):
    assert Layout(pp=pp).stage_layers(61) == stages


def test_ep_larger_than_tp_is_a_layout_that_is_not_whole():
    layout = Layout.from_engine({"tp_size": 2, "ep_size": 4})
    assert layout.moe_tp == 0
    assert not layout.whole


def test_a_width_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="tp_size must be a whole number"):
        Layout.from_engine({"tp_size": "eight"})


@given(layers=st.integers(1, 500), pp=st.integers(1, 64))
def test_stages_hold_every_layer_once(layers, pp):
    stages = Layout(pp=pp).stage_layers(layers)
    assert len(stages) == pp
    assert sum(stages) == layers
    assert max(stages) - min(stages) <= 1
    assert list(stages) == sorted(stages)


@given(
    st.dictionaries(
        st.sampled_from(["tp_size", "ep_size", "pp_size", "dp_size", "attn_dp_size", "enable_dp_attention", "nnodes"]),
        st.none() | st.booleans() | st.integers(-5, 64) | st.floats() | st.text(max_size=3),
    )
)
def test_wild_settings_give_a_layout_or_say_what_is_wrong(engine):
    try:
        layout = Layout.from_engine(engine)
    except ValueError as error:
        assert "must be a whole number" in str(error)
    else:
        assert isinstance(layout.whole, bool)
