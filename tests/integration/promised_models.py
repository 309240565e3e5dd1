"""The models that kiln promises to train, with their inputs: small copies, and the benchmark's at full size.

Random weights, CPU sizes. Nothing in them is random while they run, so that runs can be compared.
"""
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Made: TypeAlias = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))


def _pixels(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(2))


def _configured(kind: Callable[..., Any], **options: Any) -> Any:
    """A configuration with options that its class has no types of."""
    return kind(**options)


def bert(positions: int = 128) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=positions, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    tokens = _tokens(211, 2, 16)
    return BertForMaskedLM(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def gpt2(positions: int = 128) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=211, n_embd=64, n_layer=2, n_head=4, n_positions=positions,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    tokens = _tokens(211, 2, 16)
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def llama(positions: int = 128) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=211, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=positions,
                         use_cache=False)
    tokens = _tokens(211, 2, 16)
    return LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def t5() -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = _configured(
        T5Config, vocab_size=211, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0)
    tokens = _tokens(211, 2, 16)
    return T5ForConditionalGeneration(config), {"input_ids": tokens, "labels": tokens}


def vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = _configured(
        ViTConfig, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
        patch_size=8, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return ViTForImageClassification(config), {"pixel_values": _pixels(2, 32), "labels": torch.tensor([1, 3])}


def resnet() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = _configured(
        ResNetConfig, embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="bottleneck",
        num_labels=10)
    return ResNetForImageClassification(config), {"pixel_values": _pixels(4, 64), "labels": torch.tensor([1, 3, 2, 0])}


def convnext() -> Made:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = _configured(
        ConvNextConfig, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1], num_labels=10)
    return ConvNextForImageClassification(config), {"pixel_values": _pixels(2, 64), "labels": torch.tensor([1, 3])}


def segformer() -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = _configured(
        SegformerConfig, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=32, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0, drop_path_rate=0.0)
    labels = torch.randint(0, 5, (2, 64, 64), generator=torch.Generator().manual_seed(3))
    return SegformerForSemanticSegmentation(config), {"pixel_values": _pixels(2, 64), "labels": labels}


MODELS = {f.__name__: f for f in (bert, gpt2, llama, t5, vit, resnet, convnext, segformer)}


def make(name: str, **sizes: int) -> Made:
    """The model (evaluation mode, fp32) and its keyword inputs; the same for every call."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](**sizes)
    return model.eval(), inputs


# Of the benchmark's table, which has the real configurations.
FULL_SIZE = ("bert", "gpt2", "vit", "resnet50", "llama", "t5", "convnext", "segformer")


def make_full_size(name: str, task: str, device: str = "cpu") -> Made:
    """The benchmark's model for "infer" or "train", fp32, and its keyword inputs, of the device's sizes; dropout is
    off."""
    path = pathlib.Path(__file__).parents[1] / "bench" / "models.py"
    specification = importlib.util.spec_from_file_location("bench_models", path)
    assert specification and specification.loader
    table = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(table)
    model, inputs = table.build(name, task, device=device)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "drop_prob"):  # stochastic depth
            module.drop_prob = 0.0
        if isinstance(getattr(module, "dropout", None), float):  # attention's
            module.dropout = 0.0
    return model, inputs
