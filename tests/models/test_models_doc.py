"""docs/models.md is true: snippets run, tables are the registry's and the benchmark's."""

import re
from pathlib import Path

import pytest
import torch

from saccade import create_model
from saccade.models import MODELS, SequenceTransformer

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "models.md").read_text()


def row(name: str) -> str:
    """The row of the table of variants that a model should have."""
    with torch.device("meta"):
        model = create_model(name)
    config = model.config
    is_sequence = isinstance(model, SequenceTransformer)
    tokens = config.max_seq_len if is_sequence else model.patch_embed.num_patches
    sizes = (config.embed_dim, config.depth, config.num_heads, config.mlp_features)
    cells = [
        f"`{name}`",
        config.attention,
        str(tokens + model.num_prefix_tokens),
        " / ".join(map(str, sizes)),
        f"{sum(p.numel() for p in model.parameters()):,}",
        MODELS[name].source,
    ]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", list(MODELS))
def test_table_of_variants(name: str) -> None:
    assert row(name) in DOC.splitlines()


def test_memory_table_is_the_benchmarks() -> None:
    results = sorted((ROOT / "benchmarks").glob("model_memory_cpu_*.md"))
    assert results[-1].read_text().strip() in DOC


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    assert len(snippets) == 5
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(snippet, namespace)
    assert (tmp_path / "my-model" / "config.json").is_file()
