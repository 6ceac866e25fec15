"""Saving and loading: what the folder holds, wrapped models, and folders that are broken."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.saved_configs import change_config
from tiny_models import example, tiny_model
from torch import nn

from saccade import SequenceTransformer, TaylorShiftViT, VisionTransformer
from saccade.errors import ConfigError
from saccade.models import clean_state_dict, load_model
from saccade.models.hub import has_hash


def test_config_says_what_the_model_is(tmp_path: Path) -> None:
    model = tiny_model(
        "performer_cifar",
        class_names=("cat", "dog", "eye"),
        feature_seed=11,
        attention_options={"num_features": 8},
    )
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
    record = json.loads((tmp_path / "config.json").read_text())
    expected = {
        "architecture": "VisionTransformer",
        "name": "performer_cifar",
        "attention": "performer",
        "attention_options": {"num_features": 8},
        "feature_seed": 11,
        "mean": [0.4914, 0.4822, 0.4465],
        "std": [0.247, 0.2435, 0.2616],
        "img_size": [8, 12],
        "class_names": ["cat", "dog", "eye"],
    }
    assert {key: record[key] for key in expected} == expected
    again = VisionTransformer.from_pretrained(tmp_path)
    assert again.config == model.config
    assert not again.training
    assert int(again.blocks[0].attn.core.feature_seed) == 11


def test_blocks_draw_their_own_features() -> None:
    model = tiny_model("performer_cifar", depth=3, feature_seed=5)
    cores = [block.attn.core for block in model.blocks]
    assert [int(core.feature_seed) for core in cores] == [5, 6, 7]
    assert not torch.equal(cores[0].projection, cores[1].projection)
    again = tiny_model("performer_cifar", depth=3, feature_seed=5)
    assert torch.equal(again.blocks[2].attn.core.projection, cores[2].projection)


def test_feature_seed_of_the_attention_goes_first() -> None:
    options = {"feature_seed": 5, "attention_options": {"feature_seed": 9}}
    model = tiny_model("performer_cifar", depth=2, **options)
    assert [int(block.attn.core.feature_seed) for block in model.blocks] == [9, 9]
    assert tiny_model("vit_cifar", feature_seed=5).config.feature_seed == 5


def test_wrapped_models_save_plain_names(tmp_path: Path) -> None:
    model = tiny_model("vit_cifar").eval()
    x = example(model)
    expected = model(x)
    names = set(model.state_dict())
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    model.head = nn.DataParallel(model.head)
    assert set(model.state_dict()) != names
    torch.compile(model, backend="eager").save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == names
    assert torch.equal(load_model(tmp_path)(x), expected)


def test_clean_state_dict_loads_what_wrappers_saved() -> None:
    model = tiny_model("vit_cifar")
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    assert clean_state_dict(wrapped.state_dict()).keys() == model.state_dict().keys()


def test_changes_after_building_are_saved(tmp_path: Path) -> None:
    model = tiny_model("taylorir_small", global_pool="token").eval()
    model.reset_classifier(5, global_pool="avg")
    model.set_input_size((4, 5))
    model.N0 = 3
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    x = torch.randn(2, 3, 4, 5)
    assert again.N0 == 3
    assert torch.equal(again(x), model(x))


def test_sequence_length_is_saved(tmp_path: Path) -> None:
    model = tiny_model("taylorshift_imdb").eval()
    model.max_seq_len = 20
    model.save_pretrained(tmp_path)
    again = SequenceTransformer.from_pretrained(tmp_path)
    x = torch.randint(7, (2, 20))
    assert torch.equal(again(x), model(x))


def test_seed_classes_load_as_the_plain_class(tmp_path: Path) -> None:
    model = TaylorShiftViT(
        16, num_classes=3, patch_size=8, embed_dim=16, depth=1, num_heads=2
    ).eval()
    model.save_pretrained(tmp_path)
    x = torch.randn(2, 3, 16, 16)
    again = TaylorShiftViT.from_pretrained(tmp_path)
    assert type(again) is VisionTransformer
    assert again.N0 == model.N0
    assert torch.equal(again(x), model(x))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("light_vit").save_pretrained(tmp_path)
    return tmp_path


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        load_model(folder)


def test_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{oops")
    with pytest.raises(ConfigError, match=r"config\.json' is not valid JSON"):
        VisionTransformer.from_pretrained(folder)


def test_config_of_something_else(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="has no 'architecture'"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": "one"}, r"config\.json: depth must be an integer.*, got 'one'"),
        ({"color": 3}, r"config\.json: unknown key 'color'"),
        ({"attention": "hardmax"}, r"config\.json: unknown attention 'hardmax'"),
        ({"embed_dim": 32}, r"does not fit config\.json: .* such as 'blocks\.0"),
        ({"architecture": "ConvNet"}, r"unknown architecture 'ConvNet'"),
    ],
)
def test_config_with_a_wrong_value(folder: Path, changes: dict[str, object], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        load_model(folder)


def test_other_architecture(folder: Path) -> None:
    with pytest.raises(ConfigError, match="must be 'SequenceTransformer' for SequenceTransformer"):
        SequenceTransformer.from_pretrained(folder)


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors does not exist"):
        load_model(folder)


def test_weights_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        load_model(folder)


def test_weights_of_another_model(folder: Path) -> None:
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"does not fit config\.json"):
        load_model(folder)


def test_neither_folder_nor_hub_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor an accessible model"):
        load_model(tmp_path / "nowhere" / "at" / "all")


def test_hub_id_that_is_not_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'someone/something' is neither a folder nor an accessible model"
    ):
        VisionTransformer.from_pretrained(
            "someone/something", local_files_only=True, cache_dir=tmp_path
        )


def test_a_changed_config_is_refused(folder: Path) -> None:
    path = folder / "config.json"
    text = path.read_text()
    path.write_text(text.replace('"mean": [\n    0', '"mean": [\n    9'))
    assert path.read_text() != text
    with pytest.raises(ConfigError, match=r"config\.json was changed after it was written"):
        load_model(folder)


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_model("light_vit").save_pretrained(other)
    (other / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors is not what was saved with"):
        load_model(folder)


def test_a_model_of_an_earlier_version_is_not_checked(folder: Path) -> None:
    assert has_hash(folder)
    record = json.loads((folder / "config.json").read_text())
    del record["sha256"], record["weights_sha256"]
    (folder / "config.json").write_text(json.dumps(record))
    assert not has_hash(folder)
    load_model(folder)
