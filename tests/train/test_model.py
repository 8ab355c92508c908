from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model import BYTES, GPT, Config, initialize, next_byte_loss

SMALL = Config(layers=3, width=16, heads=2, sequence=12)


def model_of(config: Config, seed: int = 1) -> GPT:
    model = GPT(config)
    initialize(model, seed)
    return model


@given(layers=st.integers(1, 3), heads=st.integers(1, 3), head_width=st.integers(1, 8), sequence=st.integers(1, 20))
@settings(deadline=None, max_examples=20)
def test_the_formula_counts_the_parameters(layers: int, heads: int, head_width: int, sequence: int) -> None:
    config = Config(layers=layers, heads=heads, width=heads * head_width, sequence=sequence)
    assert config.parameters == sum(parameter.numel() for parameter in GPT(config).parameters())


def test_the_default_model_is_small() -> None:
    assert 500_000 < Config().parameters < 1_000_000


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"^3 heads do not divide width 16$"):
        Config(width=16, heads=3)


@given(position=st.integers(1, SMALL.sequence - 1), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=5)
def test_no_position_depends_on_a_later_byte(position: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = model_of(SMALL)
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight)  # as it starts, it hides what comes before it
    text = torch.randint(BYTES, (2, SMALL.sequence))
    changed = text.clone()
    changed[:, position:] = (changed[:, position:] + 1) % BYTES
    before, after = model(text), model(changed)
    torch.testing.assert_close(before[:, :position], after[:, :position], rtol=0, atol=0)
    assert not torch.allclose(before[:, position], after[:, position])


def test_the_first_loss_is_that_of_a_uniform_guess() -> None:
    text = torch.randint(BYTES, (8, SMALL.sequence + 1), generator=torch.Generator().manual_seed(1))
    loss = next_byte_loss(model_of(SMALL)(text[:, :-1]), text[:, 1:])
    assert loss.item() == pytest.approx(math.log(BYTES), abs=0.01)


def test_the_loss_is_the_mean_negative_log_likelihood() -> None:
    logits = torch.randn(3, 5, BYTES, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(15).view(3, 5)
    shares = logits.exp() / logits.exp().sum(-1, keepdim=True)
    right = [shares[row, column, targets[row, column]].log() for row in range(3) for column in range(5)]
    torch.testing.assert_close(next_byte_loss(logits, targets), -torch.stack(right).mean())


def test_the_loss_is_computed_in_float32_for_a_model_in_bfloat16() -> None:
    logits = torch.randn(2, 3, BYTES).bfloat16()
    assert next_byte_loss(logits, torch.zeros(2, 3, dtype=torch.long)).dtype == torch.float32


def test_a_rank_with_one_layer_has_the_same_initial_parameters() -> None:
    whole, part = model_of(SMALL), GPT(SMALL)
    del part.layers["0"], part.layers["2"], part.embed
    initialize(part, 1)
    theirs = whole.state_dict()
    assert len(part.state_dict()) == 8 + 1 + 1 + 1
    for name, values in part.state_dict().items():
        torch.testing.assert_close(values, theirs[name], rtol=0, atol=0)


def test_initial_parameters_depend_only_on_the_seed() -> None:
    torch.manual_seed(0)
    first = model_of(SMALL).state_dict()
    torch.manual_seed(99)
    again, other = model_of(SMALL).state_dict(), model_of(SMALL, seed=2).state_dict()
    for name, values in first.items():
        torch.testing.assert_close(values, again[name], rtol=0, atol=0)
        assert values.dim() == 1 or not torch.equal(values, other[name]), name


def test_initialize_does_not_change_torchs_random_state() -> None:
    model = GPT(SMALL)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    initialize(model, 1)
    assert torch.equal(torch.rand(3), expected)
