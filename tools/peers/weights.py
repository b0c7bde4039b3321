"""One set of weights in the forms that servers read: open_clip's checkpoint, and Hugging Face's CLIP layout.

python -m tools.peers.weights checkpoint random:0      (or hugging-face; prints where it lies, as JSON)
"""

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photodup.core.files import replacing, write_atomically
from photodup.core.paths import build_dir
from photodup.core.settings import DEFAULT_NAME
from photodup.embedding.engines.weights import load_clip


def checkpoint(pretrained: str) -> Path:
    """Return open_clip's checkpoint of some weights under build/peers/weights, written on first use."""
    import torch

    path = _folder(pretrained) / "open_clip.pt"
    if not path.is_file():
        with replacing(path) as part:
            torch.save(load_clip(DEFAULT_NAME, pretrained).state_dict(), part)
    return path


def hugging_face(pretrained: str) -> Path:
    """Return a folder that `transformers` reads as a CLIP model of the same weights, written on first use."""
    from safetensors.torch import save_file

    folder = _folder(pretrained) / "hugging-face"
    if not (folder / "model.safetensors").is_file():
        clip = load_clip(DEFAULT_NAME, pretrained)
        for file, content in _descriptions(clip).items():
            write_atomically(folder / file, content)
        weights = {
            key: tensor.contiguous().clone() for key, tensor in hugging_face_names(clip.state_dict()).items()
        }
        with replacing(folder / "model.safetensors") as part:
            save_file(weights, part, metadata={"format": "pt"})
    return folder


def hugging_face_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return open_clip's weights under the names, and in the shapes, of `transformers.CLIPModel`."""
    import torch

    names = {
        "logit_scale": state["logit_scale"],
        "text_projection.weight": state["text_projection"].T,
        "visual_projection.weight": state["visual.proj"].T,
        "text_model.embeddings.token_embedding.weight": state["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": state["positional_embedding"],
        "vision_model.embeddings.class_embedding": state["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": state["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": state["visual.positional_embedding"],
    }
    norms = {
        "ln_final": "text_model.final_layer_norm",
        "visual.ln_pre": "vision_model.pre_layrnorm",  # so it is written there
        "visual.ln_post": "vision_model.post_layernorm",
    }
    parts = {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.out_proj",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    for ours, theirs in norms.items():
        names |= {f"{theirs}.{kind}": state[f"{ours}.{kind}"] for kind in ("weight", "bias")}
    for ours, theirs in (("transformer", "text_model"), ("visual.transformer", "vision_model")):
        layers = {
            key.split(".resblocks.")[1].split(".")[0] for key in state if key.startswith(f"{ours}.resblocks.")
        }
        for layer in layers:
            before, after = f"{ours}.resblocks.{layer}", f"{theirs}.encoder.layers.{layer}"
            for kind in ("weight", "bias"):
                names |= {f"{after}.{b}.{kind}": state[f"{before}.{a}.{kind}"] for a, b in parts.items()}
                rows = torch.chunk(state[f"{before}.attn.in_proj_{kind}"], 3)
                names |= {
                    f"{after}.self_attn.{p}_proj.{kind}": row for p, row in zip("qkv", rows, strict=True)
                }
    return names


def _folder(pretrained: str) -> Path:
    label = "".join(c if c.isalnum() else "-" for c in f"{DEFAULT_NAME}-{Path(pretrained).stem}".lower())
    return build_dir() / "peers" / "weights" / label


def _descriptions(clip: Any) -> dict[str, str]:
    """Return the files beside the weights: open_clip's own tokens, and what differs from `transformers`' ViT-B/32."""
    is_quick = "Quick" in type(clip.visual.transformer.resblocks[0].mlp.gelu).__name__
    tower = {"hidden_act": "quick_gelu" if is_quick else "gelu"}
    config = {"architectures": ["CLIPModel"], "model_type": "clip", "torch_dtype": "float32"}
    ends = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    ends |= {"bos_token": "<|startoftext|>"}
    tokens = {
        **ends,
        "model_max_length": clip.positional_embedding.shape[0],
        "tokenizer_class": "CLIPTokenizer",
    }
    return {
        "config.json": json.dumps({**config, "text_config": tower, "vision_config": tower}),
        "preprocessor_config.json": json.dumps({"image_processor_type": "CLIPImageProcessor"}),
        "tokenizer_config.json": json.dumps(tokens),
        "special_tokens_map.json": json.dumps(ends),
        **_tokens(),
    }


def _tokens() -> dict[str, str]:
    """Return vocabulary and merges as `transformers` reads them, from the file that open_clip carries."""
    from importlib.resources import files

    from open_clip.tokenizer import bytes_to_unicode

    packed = files("open_clip").joinpath("bpe_simple_vocab_16e6.txt.gz").read_bytes()
    merges = gzip.decompress(packed).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = list(bytes_to_unicode().values())
    names = [*letters, *(letter + "</w>" for letter in letters), *("".join(m.split()) for m in merges)]
    names += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {name: number for number, name in enumerate(names)}
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "\n".join(["#version: 0.2", *merges]) + "\n",
    }


if __name__ == "__main__":
    form, pretrained = sys.argv[1:]
    print(json.dumps(str({"checkpoint": checkpoint, "hugging-face": hugging_face}[form](pretrained))))
