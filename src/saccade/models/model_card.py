"""The model card of a saved model: architecture, training data, recipe, accuracy and limits.

`trained` is the record that `saccade.train.load_model` attaches to a model. It is also saved in
`config.json`. The card marks unknown facts as unknown, and it reports no accuracy if the weights
changed after they were measured.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from torch import Tensor

from saccade.layers.attentions import ATTENTIONS
from saccade.models.config import ViTConfig
from saccade.stats import accuracy_interval
from saccade.version import __version__

if TYPE_CHECKING:
    from saccade.models.hub import HubModel

__all__ = ["fingerprint", "make_card"]

MAX_CLASSES_LISTED = 20
HUB_PREFIX = "hf:"
UNKNOWN = "Not known: the model was not loaded from a run folder of saccade."


def fingerprint(state: Mapping[str, Tensor]) -> int:
    """A checksum of the names and values of all weights; half precision counts as its float32."""
    found = 0
    for name in sorted(state):
        found = zlib.crc32(name.encode(), found)
        value = state[name].detach().cpu()
        if value.dtype in (torch.float16, torch.bfloat16):
            value = value.float()
        content = value.contiguous().reshape(-1).view(torch.uint8)
        found = zlib.crc32(content.numpy().tobytes(), found)
    return found


def make_card(model: HubModel, state: Mapping[str, Tensor]) -> ModelCard:
    """Build the card of a model with the weights `state`."""
    trained = model.trained or {}
    is_measured = bool(trained.get("result")) and trained.get("fingerprint") == fingerprint(state)
    data = ModelCardData(
        library_name="saccade",
        pipeline_tag=_pipeline_tag(model),
        tags=_tags(model),
        datasets=_hub_datasets(trained),
        **(_results(model, trained) if is_measured else {}),
    )
    sections = {
        "": _summary(model),
        "Use": _use(model, trained),
        "Training data": _data(trained),
        "Recipe": _recipe(trained),
        "Accuracy": _accuracy(trained, is_measured=is_measured),
        "Unsure": _unsure(trained) if is_measured else "",
        "Limits": _limits(model, trained),
    }
    parts = [f"## {title}\n\n{text}" if title else text for title, text in sections.items() if text]
    body = "\n\n".join([f"# {_plain(_name(model))}", *parts])
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n")


def _is_classifier(model: HubModel) -> bool:
    return model.config.num_classes > 0 and bool(model.config.global_pool)


def _pipeline_tag(model: HubModel) -> str | None:
    """The task name of the Hub; None for sequence models, which have no matching task."""
    if not isinstance(model.config, ViTConfig):
        return None
    return "image-classification" if _is_classifier(model) else "image-feature-extraction"


def _tags(model: HubModel) -> list[str]:
    is_image = isinstance(model.config, ViTConfig)
    kind = ["vision-transformer"] if is_image else ["transformer", "sequence"]
    if _is_classifier(model):
        kind.append("image-classification" if is_image else "sequence-classification")
    return sorted({"saccade", "pytorch", model.config.attention, *kind})


def _hub_datasets(trained: Mapping[str, Any]) -> list[str] | None:
    name = str(trained.get("data", {}).get("name", ""))
    return [name.removeprefix(HUB_PREFIX)] if name.startswith(HUB_PREFIX) else None


def _results(model: HubModel, trained: Mapping[str, Any]) -> dict[str, Any]:
    """The accuracy as metadata that the Hub shows beside the model."""
    name = str(trained["data"]["name"])
    result = EvalResult(
        task_type="image-classification",
        dataset_type=name.removeprefix(HUB_PREFIX),
        dataset_name=name,
        dataset_split="test",
        metric_type="accuracy",
        metric_value=trained["result"]["accuracy"],
    )
    return {"model_name": _name(model), "eval_results": [result], "metrics": ["accuracy"]}


def _name(model: HubModel) -> str:
    return f"{model.name or model.architecture}, {model.config.attention}"


def _summary(model: HubModel) -> str:
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows = {
        "architecture": f"`{model.architecture}`, variant {_code(model.name)}",
        "attention": f"`{config.attention}`: {ATTENTIONS[config.attention].summary}",
        "attention options": _code(config.attention_options) if config.attention_options else "",
        "parameters": f"{parameters:,}",
        "width, depth, heads": f"{config.embed_dim}, {config.depth}, {config.num_heads}",
    }
    if isinstance(config, ViTConfig):
        height, width = config.img_size
        rows["input"] = f"{config.in_chans} x {height} x {width} pixels, {config.stem} stem"
        rows["normalization"] = f"mean {_code(config.mean)}, std {_code(config.std)}"
    else:
        rows["input"] = f"up to {getattr(config, 'max_seq_len', 0):,} tokens"
    rows["classes"] = _classes(model)
    lines = [f"| {name} | {text} |" for name, text in rows.items() if text]
    return "\n".join(["| what | value |", "|---|---|", *lines])


def _code(value: object) -> str:
    return f"`{json.dumps(value).replace('`', '')}`"


def _classes(model: HubModel) -> str:
    names, count = model.config.class_names, model.config.num_classes
    if not count:
        return "none: the model has no classifier"
    if names is None:
        return f"{count}, without names"
    listed = ", ".join(_plain(name) for name in names[:MAX_CLASSES_LISTED])
    more = f" and {count - MAX_CLASSES_LISTED} more" if count > MAX_CLASSES_LISTED else ""
    return f"{count}: {listed}{more}"


def _plain(text: object) -> str:
    """Escape Markdown in a name."""
    line = " ".join(str(text).split())
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>()#|!" else c for c in line)


def _use(model: HubModel, trained: Mapping[str, Any]) -> str:
    code = f"import saccade\n\nmodel = saccade.{model.architecture}.from_pretrained(FOLDER_OR_ID)"
    text = f"```python\n{code}\n```"
    if isinstance(model.config, ViTConfig) and _is_classifier(model):
        is_folder = trained.get("config", {}).get("data", {}).get("name") == "folder"
        data = "" if trained else " --data NAME"
        data = " --data-root DIR" if is_folder else data
        text += f"\n\n```\nsaccade predict FOLDER image.png\nsaccade evaluate FOLDER{data}\n```"
    return text


def _data(trained: Mapping[str, Any]) -> str:
    if not trained:
        return UNKNOWN
    data, config = trained["data"], trained["config"].get("data", {})
    chosen = {key: config[key] for key in ("val_fraction", "num_train", "fold") if config.get(key)}
    held = f", {', '.join(f'{key} {value}' for key, value in chosen.items())}" if chosen else ""
    size = " x ".join(map(str, [data["channels"], *data["image_size"]]))
    return f"{_code(data['name'])}: {data['num_classes']} classes, images of {size}{held}."


def _recipe(trained: Mapping[str, Any]) -> str:
    if not trained:
        return UNKNOWN
    machine = trained["environment"]
    where = ", ".join(f"{name} {machine[name]}" for name in machine if machine[name])
    summary = (
        f"{trained['epochs_done']} of {trained['epochs']} epochs, {trained['weights']} weights, "
        f"seed {trained['seed']}. {where}.".replace(" .", ".")
    )
    text = yaml.safe_dump(trained["config"], sort_keys=False, allow_unicode=True)
    return f"{_plain(summary)}\n\n```yaml\n{text.replace('```', '')}```"


def _accuracy(trained: Mapping[str, Any], *, is_measured: bool) -> str:
    if not trained:
        return UNKNOWN
    result = trained["result"]
    if not result:
        return "Not known: the run did not measure these weights on its test images."
    accuracy = f"{100 * result['accuracy']:.2f} % of {result['count']:,} test images"
    if is_measured:
        before = result.get("weights", "float16") != "float16"
        rounded = " It was measured before the weights were rounded to float16." if before else ""
        return (
            f"{accuracy} (top-1, one run{_interval(result['accuracy'], result['count'])}).{rounded}"
        )
    return f"Not known: the weights changed after the run, which classified {accuracy} correctly."


def _unsure(trained: Mapping[str, Any]) -> str:
    """The threshold on the confidence; empty if none was calibrated."""
    found = trained.get("unsure")
    if not found:
        return ""
    tested, wrong = found["test_accepted"], found["test_errors"]
    share = tested / trained["result"]["count"]
    return (
        f"A prediction with a confidence below {found['below']:.3f} is called unsure. The "
        f"threshold was chosen on {found['count']:,} validation images so that, with probability "
        f"{100 * found['level']:.0f} %, at most {100 * found['max_error']:.0f} % of the other "
        f"predictions are wrong on images of the same kind (arXiv:1705.08500). On the test images "
        f"{100 * share:.1f} % of the predictions are not unsure, and {wrong} of these {tested:,} "
        f"({100 * wrong / max(1, tested):.2f} %) are wrong. Images of other kinds can get a high "
        "confidence as well."
    )


def _interval(accuracy: float, count: int) -> str:
    """The interval of an accuracy over new images."""
    if count < 2:
        return ""
    found = accuracy_interval(np.arange(count) < round(accuracy * count))
    return f"; 95 % interval over images {100 * found.low:.2f} to {100 * found.high:.2f} %"


def _limits(model: HubModel, trained: Mapping[str, Any]) -> str:
    limits = []
    if _is_classifier(model):
        limits.append(
            f"It assigns one of {model.config.num_classes} classes to every input. The calibration "
            "of its probabilities was not checked on other data."
        )
    if isinstance(model.config, ViTConfig):
        height, width = model.config.img_size
        limits.append(f"Images are cropped to a square and resized to {height} x {width} pixels.")
    if trained:
        limits.append("Any accuracy is from one run, on test images of the same data set.")
        if trained["epochs_done"] < trained["epochs"]:
            limits.append("Its training was not finished.")
    limits.append("Robustness, bias and use beyond its data were not examined.")
    lines = "\n".join(f"- {limit}" for limit in limits)
    return f"{lines}\n\nWritten by saccade {__version__}."
