#!/usr/bin/env python3
"""Writes types.json: every model type of the transformers library whose default config.json
mentions experts, with the fields of it that may belong to the layer.

    pip install transformers torch && python3 modeltypes.py
"""
import json
import pathlib
import re
import warnings

warnings.simplefilter("ignore")
from transformers import CONFIG_MAPPING, __version__

INNER = ("text_config", "language_config", "llm_config", "thinker_config", "ffn_config")
FIELDS = re.compile(
    r"expert|moe|rout|top_?k|scor|group|swiglu|shar|sparse|latent|clamp|_act|mlp|dense|hidden|intermediate|"
    r"num_.*layers$|layer_types$|layers_block_type|hybrid_override|d_model|n_layers|model_type|dtype|norm_min|use_.*bias|ffn"
)


def layer(config):
    """Returns the fields that may belong to the expert layers, also those of the text model."""
    return {
        name: layer(value) if name in INNER else value
        for name, value in sorted(config.items())
        if value is not None and (name in INNER or FIELDS.search(name) and not isinstance(value, dict))
    }


rows = {}
for name in sorted(CONFIG_MAPPING.keys()):
    try:
        config = json.loads(CONFIG_MAPPING[name]().to_json_string(use_diff=False))
    except Exception:  # a model that consists of several parts and has no default
        continue
    if re.search("expert|moe_", json.dumps(config)):
        rows[name] = layer(config)

lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in rows.items())
pathlib.Path(__file__).with_name("types.json").write_text("{\n" + lines + "\n}\n")
print(f"transformers {__version__}: {len(rows)} model types")
