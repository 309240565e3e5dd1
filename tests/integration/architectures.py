"""Small models of the architectures that transformers knows, with inputs.

Sizes are set by the names that configurations have for them, in every part of one (a text and a vision model). Left out
are architectures that no such configuration or input fits, those of over 100 million parameters even so, and
those that draw numbers of their own (VitMAE, VITS) or that Dynamo itself gets wrong (PaliGemma, torch 2.13).
"""
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

BASE = """
    aimv2_vision_model albert altclip aria audioflamingo3 aya_vision beit bit canine chinese_clip
    chinese_clip_vision_model clip clip_text_model clip_vision_model clipseg cohere2_vision convbert cosmos3_omni
    cvt data2vec-audio data2vec-vision deberta deberta-v2 deepseek_vl deepseek_vl_hybrid deit dinov2
    dinov2_with_registers dinov3_convnext distilbert dpr dpt eurobert evolla exaone4_5 fastspeech2_conformer
    fastspeech2_conformer_with_hifigan flaubert flava florence2 fnet focalnet fsmt glmasr glpn gradium_phonon_tts
    granite_docling_text granite_speech granite_speech_plus gte hgnet_v2 hiera higgs_audio_v2 hubert
    hyperclovax_vision_v2 ibert idefics2 idefics3 ijepa imagegpt internvl internvl_vision jina_embeddings_v3
    kosmos-2.5 lasr_encoder layoutlm led levit lfm2_vl lfm3_vl lighton_ocr llava llava_next llava_next_video
    llava_onevision longformer longt5 m2m_100 markuplm maskformer metaclip_2 mgp-str minicpm_ocr minicpmv4_6
    minicpmv4_7 mistral3 mlcd mlcd_vision_model mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2
    modernbert modernvbert molmo2_text moonshine mpnet mra mt5 muse_glimmer muse_glimmer_text muse_spark_text
    musicflamingo nemotron3_5_asr nemotron3_5_transcribe_asr_audio nemotron3_diarization_audio
    nemotron_asr_streaming nemotron_asr_streaming_encoder neomme nllb-moe nomic_bert nystromformer omniasr
    openai_privacy_filter ovis2 parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt pegasus_x pixio pixtral
    pocket_tts poolformer pp_ocrv5_server_rec pp_ocrv6_small_rec pp_ocrv6_tiny_rec pvt pvt_v2 qianfan_ocr
    qianfan_ocr_vision qwen2_audio qwen3_asr qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen3_vl_moe_text
    qwen3_vl_text radio regnet resnet sam3_vision_model sam3_vit_model sam_hq_vision_model sam_vision_model sapiens2
    seamless_m4t seamless_m4t_v2 segformer sew sew-d siglip_vision_model smolvlm speech_to_text splinter swiftformer
    switch_transformers t5 t5gemma tapas textnet tipsv2_text_model tipsv2_vision_model ultrabert ultravbert umt5
    unispeech unispeech-sat univnet video_llama_3 video_llava vipllava visual_bert vit vit_msn vitdet voxtral
    wav2vec2 wav2vec2-conformer wavlm yolos yoso
""".split()
CAUSAL_LM = """
    afmoe apertus apertus1p5_text arcee aria_text bart beam bert bert-generation big_bird bigbird_pegasus biogpt
    bitnet blenderbot blenderbot-small bloom camembert cohere cohere2 cohere2_moe cpmant ctrl cwm data2vec-text
    deepseek_v4 diffllama doge dory electra ernie ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe flex_olmo flint
    fuyu gemma gemma2 gemma3 gemma3_text git glm glm4 glm4_moe got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox
    gpt_neox_japanese gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium
    hrm_text hy_v3 hy_v4 hyperclovax inkling2_loop_text inkling2_text inkling_text internlm3 iquestcoder jais2
    jetmoe kolibri1 laguna lara_mini lfm2 lfm3 llama llama4_text marian mbart megatron-bert mellum mimo_v2_flash
    minimax minimax_m2 minimax_m3_vl_text ministral3 mistral mixtral mllama modernbert-decoder moshi
    moss_transcribe_diarize mvp nanochat nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt pegasus
    persimmon phi phi3 phi4_multimodal phimoe plbart qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe
    qwen3_next rembert roberta roberta-prelayernorm roc_bert roformer rwkv sarvam_moe seed_oss smollm3 solar_open
    stablelm starcoder2 trocr vaultgemma whisper xglm xlm xlm-roberta xlm-roberta-xl
""".split()
ARCHITECTURES = [(name, "MODEL_MAPPING") for name in BASE] + [
    (name, "MODEL_FOR_CAUSAL_LM_MAPPING") for name in CAUSAL_LM]

_SIZES = {
    **dict.fromkeys("hidden_size d_model n_embd embed_dim dim moe_intermediate_size".split(), 64),
    **dict.fromkeys("intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff hidden_dim".split(), 128),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers"
                    .split(), 2),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
                    .split(), 4),
    **dict.fromkeys("head_dim d_kv kv_channels kv_lora_rank qk_nope_head_dim v_head_dim".split(), 16),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts".split(), 4),
    **dict.fromkeys("max_position_embeddings n_positions".split(), 128),
    **dict.fromkeys("n_group topk_group first_k_dense_replace bos_token_id".split(), 1),
    **dict.fromkeys("hidden_dropout_prob attention_probs_dropout_prob dropout attention_dropout resid_pdrop embd_pdrop "
                    "attn_pdrop drop_path_rate hidden_dropout activation_dropout layerdrop".split(), 0.0),
    "num_key_value_heads": 2, "num_experts_per_tok": 2, "eos_token_id": 2, "pad_token_id": 0, "q_lora_rank": 32,
    "qk_rope_head_dim": 8, "image_size": 64, "vocab_size": 200, "use_cache": False,
}


def _small(config: Any) -> dict[str, Any]:
    return {name: size for name, size in _SIZES.items() if isinstance(getattr(config, name, None), (int, float))}


def _two_kinds(layer_types: list[str]) -> list[str]:
    """Of two layers' kinds, two that differ where there are such."""
    return [layer_types[0], next((kind for kind in layer_types if kind != layer_types[0]), layer_types[0])]


def _config(name: str) -> Any:
    from transformers import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    whole = CONFIG_MAPPING[name]()
    parts = {}
    for key, part in vars(whole).items():
        if isinstance(part, PreTrainedConfig):
            parts[key] = {**part.to_dict(), **_small(part)}
            if isinstance(parts[key].get("layer_types"), list):
                parts[key]["layer_types"] = parts[key]["layer_types"][:2]
    sizes = _small(whole)
    if getattr(whole, "layer_types", None):
        sizes["layer_types"] = _two_kinds(whole.layer_types)
    kind: Callable[..., Any] = type(whole)
    try:
        return kind(**sizes, **parts)
    except Exception:  # sizes that contradict others of this architecture
        return whole


def make(name: str, mapping: str) -> Any:
    """The model, in evaluation; skips where this version of transformers has none."""
    from transformers.models.auto import modeling_auto

    try:
        config = _config(name)
        classes = getattr(modeling_auto, mapping)[type(config)]
    except (KeyError, ImportError) as error:
        pytest.skip(f"transformers has no {name} here: {error}")
    torch.manual_seed(0)
    model = (classes[0] if isinstance(classes, tuple) else classes)(config).eval()
    # At a ReLU's kink one rounding more makes a gradient another.
    for module in model.modules():
        for child, part in module.named_children():
            if isinstance(part, torch.nn.ReLU):
                setattr(module, child, torch.nn.GELU())
    # What starts as zeros would hide what stands before it.
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not parameter.any():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * .02)
    return model


def _image(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 64
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    return (channels, *size) if isinstance(size, (list, tuple)) else (channels, size, size)


def inputs(model: Any, batch: int = 2, length: int = 12) -> dict[str, Any]:
    """What the model's main input asks for; `length` is of tokens, and longer sounds are longer."""
    config, name = model.config, model.main_input_name
    parameters = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    vocabulary = min(getattr(getattr(config, "text_config", config), "vocab_size", None) or 100, 190)

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(3, max(4, vocabulary), (batch, count), generator=generator)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator)

    longer = length - 12
    found = {}
    if name == "input_ids":
        found["input_ids"] = tokens(length)
    elif name == "pixel_values":
        found["pixel_values"] = noise(*_image(config))
    elif name == "input_features":
        names = ("num_mel_bins", "feature_size", "input_feat_per_channel")
        bands = next((getattr(config, name) for name in names if getattr(config, name, None)), 80)
        if config.model_type == "whisper":
            found["input_features"] = noise(bands, 2 * config.max_source_positions)
        else:
            found["input_features"] = noise(64 + 4 * longer, bands)
        if "noise_sequence" in parameters:  # Dynamo draws none of sizes that it does not know
            found["noise_sequence"] = noise(64 + 4 * longer, config.model_in_channels)
    elif name == "input_values":
        found["input_values"] = noise(4000 + 160 * longer)
    else:
        found.update(model.dummy_inputs)
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        found.setdefault("decoder_input_ids", tokens(length - 4))
    if "pixel_values" in parameters and "input_ids" in found and "clip" in config.model_type:
        found["pixel_values"] = noise(*_image(config))
    return found
