"""The models of the benchmark table: real architectures of `transformers`, random weights.

`build(name, task)` returns (model, inputs): inputs are keyword arguments of the model's forward. Batch and
sequence sizes suit two cores; training inputs carry labels, so the model returns a loss.
"""
import torch
import transformers as t


def _tokens(batch, length, vocabulary):
    return torch.randint(0, vocabulary, (batch, length))


def _text(batch, length, vocabulary, task):
    ids = _tokens(batch, length, vocabulary)
    return {"input_ids": ids, "labels": _tokens(batch, length, vocabulary)} if task == "train" else {"input_ids": ids}


def _image(batch, task, size=224):
    inputs = {"pixel_values": torch.randn(batch, 3, size, size)}
    if task == "train":
        inputs["labels"] = torch.randint(0, 2, (batch,))
    return inputs


def _t5(task):
    inputs = _text(4 if task == "train" else 1, 128, 32000, task)
    if task != "train":
        inputs["decoder_input_ids"] = _tokens(1, 32, 32000)
    return inputs


def _segformer(task):
    inputs = {"pixel_values": torch.randn(1, 3, 256, 256)}
    if task == "train":
        inputs["labels"] = torch.randint(0, 2, (1, 256, 256))
    return inputs


_LLAMA = dict(num_hidden_layers=4, hidden_size=512, num_attention_heads=8, num_key_value_heads=4,
              intermediate_size=1408, vocab_size=32000, use_cache=False)

# name: (model, inputs by task)
MODELS = {
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
    "t5": (lambda: t.T5ForConditionalGeneration(t.T5Config(use_cache=False, decoder_start_token_id=0)), _t5),
    "convnext": (lambda: t.ConvNextForImageClassification(t.ConvNextConfig()),
                 lambda task: _image(4 if task == "train" else 1, task)),
    "segformer": (lambda: t.SegformerForSemanticSegmentation(t.SegformerConfig()), _segformer),
    "mobilenet": (lambda: t.MobileNetV2ForImageClassification(t.MobileNetV2Config()),
                  lambda task: _image(8 if task == "train" else 1, task)),
    "beit": (lambda: t.BeitForImageClassification(t.BeitConfig()),
             lambda task: _image(4 if task == "train" else 1, task)),
}


def build(name, task, dtype=torch.float32):
    if name not in MODELS:
        raise SystemExit(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    make_model, make_inputs = MODELS[name]
    torch.manual_seed(0)
    model = make_model().to(dtype)
    model.train(task == "train")
    inputs = {key: value.to(dtype) if value.is_floating_point() else value
              for key, value in make_inputs(task).items()}
    return model, inputs
