"""Recompute log probabilities with `transformers`, from ids and images alone. Runs in the environment that serves the model.

    python recompute_logprobs.py MODEL_DIR CALLS.json

CALLS.json: a list of {prompt_token_ids, generated_token_ids, images (paths), temperature, top_p}. Prints one JSON list of lists.
Shares no code with the recorder: a plain forward pass, the temperature, top-p as in Holtzman et al. 2020 (the smallest set whose
probability reaches p), log softmax.
"""

import json
import sys
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText


def main(model_dir: str, calls_path: str) -> None:
    torch.set_num_threads(1)
    model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32).eval()
    processor = AutoImageProcessor.from_pretrained(model_dir)
    out = []
    for call in json.loads(Path(calls_path).read_text()):
        prompt, generated = call["prompt_token_ids"], call["generated_token_ids"]
        images = [Image.open(path).convert("RGB") for path in call["images"]]
        inputs = {"input_ids": torch.tensor([prompt + generated])}
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == model.config.image_token_id).long()
        if images:
            inputs |= {
                name: value
                for name, value in processor(images=images, return_tensors="pt").items()
                if name in {"pixel_values", "image_grid_thw"}
            }
        with torch.no_grad():
            logits = model(**inputs).logits[0].double()
        rows = logits[len(prompt) - 1 : -1] / call.get("temperature", 1.0)
        top_p = call.get("top_p", 1.0)
        if top_p < 1:
            ordered, order = rows.softmax(-1).sort(-1, descending=True)
            outside = ordered.cumsum(-1) - ordered >= top_p
            rows = rows.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), float("-inf"))
        scores = rows.log_softmax(-1)
        out.append(scores.gather(-1, torch.tensor(generated)[:, None])[:, 0].tolist())
    json.dump(out, sys.stdout)


main(*sys.argv[1:])
