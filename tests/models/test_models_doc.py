"""docs/models.md is true: snippets run, tables are the registry's and the benchmark's."""

import re
from pathlib import Path

import pytest
import torch

from saccade import create_model
from saccade.models import MODELS, SequenceTransformer

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "models.md").read_text()
PUBLISHED = (ROOT / "docs" / "published.md").read_text()


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


def published_rows() -> dict[str, list[str]]:
    """The first table of docs/published.md, by the names of variants, which may be patterns."""
    table = [line for line in PUBLISHED.splitlines() if line.startswith("| `")][:5]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {name.strip("`"): rest for first, *rest in cells for name in first.split(", ")}


def test_the_table_of_the_published_page_is_the_registrys() -> None:
    checked = set()
    for pattern, (eps, act, dropout, position, norm) in published_rows().items():
        for name in MODELS.names(pattern):
            config = MODELS[name].config
            checked.add(name)
            assert config.norm_eps == float(eps.partition(";")[0])
            assert config.act == ("gelu_tanh" if act == "tanh" else "gelu")
            assert config.pos_drop_rate == config.proj_drop_rate == ("positions" in dropout) * 0.1
            assert config.attn_drop_rate == ("attention weights" in dropout) * 0.1
            assert config.drop_rate == ("head" in dropout) * 0.1
            assert (config.act_drop_rate == 0) == ("not inside the MLP" in dropout)
            assert config.no_embed_class == (position == "no")
            assert config.final_norm
            assert norm in ("yes", "added here")
    assert set(MODELS) - checked == {
        "residual_cifar",
        "lra_small",
        *MODELS.names("vit_*_patch16_224"),
    }


def test_memory_table_is_the_benchmarks() -> None:
    results = sorted((ROOT / "results" / "model").glob("model_memory_cpu_*.md"))
    assert results[-1].read_text().strip() in DOC


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    assert len(snippets) == 6
    namespace: dict[str, object] = {}
    for snippet in snippets:
        exec(snippet, namespace)
    assert (tmp_path / "my-model" / "config.json").is_file()
