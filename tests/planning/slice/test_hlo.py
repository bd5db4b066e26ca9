"""planning.slice.hlo and groups: bytes, cycles and parts of a program, counted by hand."""

import dataclasses

import pytest

from keras_vit.planning.slice.hlo import Program
from keras_vit.planning.slice.layer_costs import ORDER, RANDOM, group_of, grouped

# In the form that XLA's compiler for TPUs prints: layouts with S(1) are in the chip's own memory.
TEXT = """HloModule jit_train_step, is_scheduled=true, entry_computation_layout={(f32[8,128]{1,0})->f32[]}

%fused_computation (param_0: bf16[64,128]) -> bf16[64,128] {
  %param_0 = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(0)
  %xor = u32[64,128]{1,0} xor(%param_0, %param_0), metadata={op_name="jit(train_step)/jvp(block_00)/mlp/dropout/jit(_bernoulli)/xor"}
  ROOT %dot = bf16[64,128]{1,0:T(8,128)(2,1)} dot(%param_0, %xor), metadata={op_name="jit(train_step)/jvp(block_00)/mlp/out/dot_general"}
}

%body (state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %state = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %element = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state), index=1
  ROOT %step = f32[8,128]{1,0:T(8,128)} fusion(%element), kind=kLoop, calls=%fused_computation, backend_config={"window_config":{"estimated_cycles":"10"}}
}

ENTRY %main.1_spmd (param.1: f32[8,128], /*index=1*/param.2: bf16[64,128]) -> (f32[], bf16[64,128]) {
  %param.1 = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="state[0][0]"}
  %param.2 = bf16[64,128]{1,0:T(8,128)(2,1)} parameter(1)
  %constant.1 = f32[]{:T(128)} constant(2)
  %slice-start.1 = ((f32[8,128]{1,0:T(8,128)}), f32[2,128]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%param.1), slice={[0:2], [0:128]}
  %slice-done.1 = f32[2,128]{1,0:T(8,128)S(1)} slice-done(%slice-start.1)
  %fusion.1 = bf16[64,128]{1,0:T(8,128)(2,1)S(1)} fusion(%param.2, %slice-done.1, %constant.1), kind=kOutput, calls=%fused_computation, metadata={op_name="jit(train_step)/jvp(block_00)/mlp/out/dot_general" stack_frame_id=4}, backend_config={"window_config":{"estimated_cycles":"1500"}}
  %fusion.2 = (bf16[64,128]{1,0:T(8,128)(2,1)}, f32[64]{0:T(1024)S(1)}) fusion(%fusion.1), kind=kOutput, calls=%other, metadata={op_name="jit(train_step)/transpose(jvp(block_00))/value/dot_general"}, backend_config={"window_config":{"estimated_cycles":"500"}}
  %element.1 = bf16[64,128]{1,0:T(8,128)(2,1)} get-tuple-element(%fusion.2), index=0
  %copy.1 = bf16[64,128]{0,1:T(8,128)(2,1)} copy(%element.1), metadata={op_name="jit(train_step)/jvp(block_00)/transpose"}, backend_config={"window_config":{"estimated_cycles":"40"}}
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, f32[128]{0:T(1024)}) all-reduce(%param.1, %constant.1), channel_id=1, metadata={op_name="jit(train_step)/transpose(jvp(block_00))/value/dot_general"}
  %while.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) while(%tuple), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  %sub.1 = f32[8,128]{1,0:T(8,128)} subtract(%param.1, %param.1), metadata={op_name="jit(train_step)/adamw/sub"}
  ROOT %tuple.1 = (f32[], bf16[64,128]) tuple(%constant.1, %copy.1)
}
"""
WHOLE, SLICE, MATRIX = 8 * 128 * 4, 2 * 128 * 4, 64 * 128 * 2  # bytes


@pytest.fixture(scope="module")
def costs():
    return {cost.instruction.name: cost for cost in Program(TEXT).costs()}


def test_only_what_is_in_hbm_counts(costs):
    assert costs["slice-start.1"].hbm == SLICE  # what it copies, once
    assert costs["fusion.1"].hbm == MATRIX  # reads param.2; the slice and the result are in the chip's own memory
    assert costs["fusion.2"].hbm == MATRIX  # writes one of two results there
    assert costs["copy.1"].hbm == MATRIX + MATRIX  # of a tuple's element its own array
    assert costs["sub.1"].hbm == 3 * WHOLE


def test_a_loop_counts_as_often_as_it_runs(costs):
    step = costs["step"]
    assert (step.times, step.cycles, step.hbm) == (4, 40, 4 * 2 * WHOLE)


def test_what_gives_names_to_values_costs_nothing(costs):
    assert not {"param.1", "constant.1", "slice-done.1", "element.1", "tuple.1"} & set(costs)


def test_cycles_are_xlas(costs):
    assert sum(cost.cycles for cost in costs.values()) == 1500 + 500 + 40 + 4 * 10


def test_sums_between_chips_are_known(costs):
    assert [name for name, cost in costs.items() if cost.instruction.collective] == ["all-reduce.1"]
    assert sum(size for size, _ in costs["all-reduce.1"].instruction.results) == WHOLE + 128 * 4


def test_random_numbers_inside_a_fusion_are_found(costs):
    program = Program(TEXT)
    found = [name for name, cost in costs.items() if program.holds(cost.instruction, RANDOM)]
    assert found == ["fusion.1", "step"]


def test_every_instruction_has_its_part(costs):
    groups = {name: group_of(cost, "adamw") for name, cost in costs.items()}
    assert groups == {
        "slice-start.1": ("copies ahead of use", ""),
        "fusion.1": ("MLP", "forward"),
        "fusion.2": ("attention", "backward"),
        "copy.1": ("head copies", "forward"),
        "all-reduce.1": ("sums between chips", ""),
        "step": ("other", ""),
        "sub.1": ("optimizer", ""),
    }


@pytest.mark.parametrize(
    "path, name",
    [
        ("jvp(block_03)/attention_norm/jit(_var)/reduce_sum", "normalisation"),
        ("jvp(encoder_norm)/mul", "normalisation"),
        ("jvp(block_03)/mlp/hidden_dropout/jit(_bernoulli)/lt", "dropout"),
        ("jvp(block_03)/mlp/hidden/dot_general", "MLP"),
        ("jvp(block_03)/query/dot_general", "attention"),
        ("jvp(block_03)/reshape", "head copies"),
        ("jvp(patch_encoder)/conv_general_dilated", "input and embedding"),
        ("jvp(normalization)/sub", "input and embedding"),
        ("jvp(head)/dot_general", "head"),
        ("jvp(compile_loss)/loss/jit(log_softmax)/log", "loss and metrics"),
    ],
)
def test_names_of_layers_give_the_part(path, name, costs):
    instruction = dataclasses.replace(costs["fusion.1"].instruction, op_name=f"jit(train_step)/{path}")
    assert group_of(dataclasses.replace(costs["fusion.1"], instruction=instruction), "adamw") == (name, "forward")


def test_the_parts_are_the_whole(costs):
    groups = grouped(costs.values(), "adamw")
    assert sum(group.cycles for group in groups) == sum(cost.cycles for cost in costs.values())
    assert sum(group.hbm for group in groups) == sum(cost.hbm for cost in costs.values())
    assert [ORDER.index(group.name) for group in groups] == sorted(ORDER.index(group.name) for group in groups)


def test_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="without an entry computation"):
        Program("HloModule nothing")
