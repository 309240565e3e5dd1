"""The models of the benchmark tables: real architectures of `transformers`, random weights.

`build(name, task)` returns (model, inputs): inputs are keyword arguments of the model's forward. Training inputs carry
labels, so the model returns a loss. Batch and sequence sizes suit two cores on the CPU (MODELS), one large GPU on
"cuda" (GPU_MODELS).
"""
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import transformers as t

Inputs: TypeAlias = dict[str, torch.Tensor]


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _text(batch: int, length: int, vocabulary: int, task: str) -> Inputs:
    ids = _tokens(batch, length, vocabulary)
    return {"input_ids": ids, "labels": _tokens(batch, length, vocabulary)} if task == "train" else {"input_ids": ids}


def _image(batch: int, task: str, size: int = 224) -> Inputs:
    inputs = {"pixel_values": torch.randn(batch, 3, size, size)}
    if task == "train":
        inputs["labels"] = torch.randint(0, 2, (batch,))
    return inputs


def _t5(task: str) -> Inputs:
    inputs = _text(4 if task == "train" else 1, 128, 32000, task)
    if task != "train":
        inputs["decoder_input_ids"] = _tokens(1, 32, 32000)
    return inputs


def _segformer(task: str, size: int = 256) -> Inputs:
    inputs = {"pixel_values": torch.randn(1, 3, size, size)}
    if task == "train":
        inputs["labels"] = torch.randint(0, 2, (1, size, size))
    return inputs


_LLAMA: dict[str, Any] = dict(num_hidden_layers=4, hidden_size=512, num_attention_heads=8, num_key_value_heads=4,
                              intermediate_size=1408, vocab_size=32000, use_cache=False)
_LLAMA_GPU = dict(_LLAMA, num_hidden_layers=8, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8,
                  intermediate_size=2816)


def configured(kind: Callable[..., Any], **options: Any) -> Any:
    """A configuration with options that its class has no types of."""
    return kind(**options)


def _detr() -> torch.nn.Module:
    backbone = configured(t.ResNetConfig, out_features=["stage4"])
    model: torch.nn.Module = t.DetrForObjectDetection(configured(
        t.DetrConfig, backbone_config=backbone, use_timm_backbone=False, backbone=None, use_pretrained_backbone=False))
    return model
# name: (model, inputs by task)
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[str], Inputs]]] = {
    "bert": (lambda: t.BertForMaskedLM(t.BertConfig()),
             lambda task: _text(4 if task == "train" else 1, 128, 30522, task)),
    "gpt2": (lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)),
             lambda task: _text(2 if task == "train" else 1, 128, 50257, task)),
    "vit": (lambda: t.ViTForImageClassification(t.ViTConfig()),
            lambda task: _image(4 if task == "train" else 1, task)),
    "resnet50": (lambda: t.ResNetForImageClassification(t.ResNetConfig()),
                 lambda task: _image(8 if task == "train" else 1, task)),
    "llama": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**_LLAMA)),
              lambda task: _text(4 if task == "train" else 1, 256, 32000, task)),
    "t5": (lambda: t.T5ForConditionalGeneration(
        configured(t.T5Config, use_cache=False, decoder_start_token_id=0)), _t5),
    "convnext": (lambda: t.ConvNextForImageClassification(t.ConvNextConfig()),
                 lambda task: _image(4 if task == "train" else 1, task)),
    "segformer": (lambda: t.SegformerForSemanticSegmentation(t.SegformerConfig()), _segformer),
    "mobilenet": (lambda: t.MobileNetV2ForImageClassification(t.MobileNetV2Config()),
                  lambda task: _image(8 if task == "train" else 1, task)),
    "beit": (lambda: t.BeitForImageClassification(t.BeitConfig()),
             lambda task: _image(4 if task == "train" else 1, task)),
}


# By the name of a model of MODELS: the model and its inputs by task where they differ on a GPU.
_ON_GPU: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[str], Inputs]]] = {
    "bert": (MODELS["bert"][0], lambda task: _text(*((16, 512) if task == "train" else (1, 12)), 30522, task)),
    "gpt2": (MODELS["gpt2"][0], lambda task: _text(4 if task == "train" else 1, 512, 50257, task)),
    "llama": (lambda: t.LlamaForCausalLM(t.LlamaConfig(**_LLAMA_GPU)),
              lambda task: _text(4 if task == "train" else 1, 1024, 32000, task)),
    "vit": (MODELS["vit"][0], lambda task: _image(64 if task == "train" else 1, task)),
    "resnet50": (MODELS["resnet50"][0], lambda task: _image(32 if task == "train" else 1, task)),
    "segformer": (MODELS["segformer"][0], lambda task: _segformer(task, 512)),
    "detr": (_detr, lambda task: {"pixel_values": torch.randn(1, 3, 512, 512)}),
}
GPU_MODELS = {**MODELS, **_ON_GPU}


def build(name: str, task: str, dtype: torch.dtype = torch.float32,
          device: str = "cpu") -> tuple[torch.nn.Module, Inputs]:
    """(model, inputs) on the device; DETR has no labels here and so no training."""
    known = GPU_MODELS if device == "cuda" else MODELS
    if name not in known:
        raise SystemExit(f"unknown model {name!r}; known: {', '.join(known)}")
    make_model, make_inputs = known[name]
    torch.manual_seed(0)
    model = make_model().to(device, dtype)
    model.train(task == "train")
    inputs = {key: value.to(device, dtype if value.is_floating_point() else None)
              for key, value in make_inputs(task).items()}
    return model, inputs
