"""Names that are suggested for one that is unknown."""

from collections.abc import Callable
from dataclasses import fields

import pytest

from saccade.config import Config, load_config, similar_keys
from saccade.errors import ConfigError, UnknownNameError, near_matches
from saccade.layers import ATTENTIONS
from saccade.models import SequenceConfig, ViTConfig, create_model
from saccade.registry import Registry
from saccade.synonyms import MODEL_FIELDS, RUN_KEYS, WITHOUT_COUNTERPART

KEYS = [
    *("train.epochs", "train.device", "train.precision", "train.ema_decay", "data.root"),
    *("augment.flip", "augment.mixup", "augment.erase"),
]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("train.epoch", ["train.epochs"]),
        ("trian.epochs", ["train.epochs"]),
        ("train.ema", ["train.ema_decay"]),
        ("data.rot", ["data.root"]),
        ("train.zzz", []),
        ("augment.zzz", []),
    ],
)
def test_only_names_that_are_near_are_suggested(name: str, near: list[str]) -> None:
    assert near_matches(name, KEYS) == near


def test_names_that_are_equally_near_are_all_suggested() -> None:
    known = ["taylorshift-vit-s", "taylorshift-vit-m", "digits-quick"]
    assert sorted(near_matches("taylorshift-vit", known)) == sorted(known[:2])


FIELDS = sorted({field.name for field in (*fields(ViTConfig), *fields(SequenceConfig))})
OPTIONS = sorted({option for name in ATTENTIONS for option in ATTENTIONS[name].options})


@pytest.mark.parametrize("name", MODEL_FIELDS)
def test_names_of_other_libraries_lead_to_the_field_of_that_meaning(name: str) -> None:
    meant = [field for field in MODEL_FIELDS[name] if field in [*FIELDS, *OPTIONS]]
    assert meant, f"no model and no attention has {MODEL_FIELDS[name]}"
    known = FIELDS if meant[0] in FIELDS else OPTIONS
    assert near_matches(name, known) == meant
    assert near_matches(f"--{name.replace('_', '-').upper()}", known) == meant


@pytest.mark.parametrize("name", RUN_KEYS)
def test_names_of_training_scripts_lead_to_keys_that_exist(name: str) -> None:
    if RUN_KEYS[name] == ("out",):
        return
    assert similar_keys(name) == list(RUN_KEYS[name])
    assert set(RUN_KEYS[name]) <= {
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in getattr(field.annotation, "model_fields", ())
    }


@pytest.mark.parametrize("name", sorted(WITHOUT_COUNTERPART))
def test_foreign_names_without_a_counterpart_suggest_nothing(name: str) -> None:
    assert near_matches(name, FIELDS) == []
    assert similar_keys(f"model.overrides.{name}") == []
    assert near_matches(name, [name, f"{name}s"]) != []


def test_no_own_name_is_listed_as_a_foreign_one() -> None:
    own = set(FIELDS) | set(OPTIONS)
    assert not own & (set(MODEL_FIELDS) | WITHOUT_COUNTERPART)
    assert not WITHOUT_COUNTERPART & (set(MODEL_FIELDS) | set(RUN_KEYS))
    keys = {key for field in Config.model_fields.values() for key in _keys(field.annotation)}
    assert not keys & set(RUN_KEYS)
    assert not set(MODEL_FIELDS) & set(RUN_KEYS)


def _keys(section: object) -> list[str]:
    return list(getattr(section, "model_fields", ()))


@pytest.mark.parametrize(
    ("refused", "meant"),
    [
        (lambda: create_model("vit_cifar", hidden_size=32), ["embed_dim"]),
        (lambda: create_model("vit_cifar", num_hidden_layers=3), ["depth"]),
        (lambda: create_model("taylorshift_imdb", vocab_size=3), ["input_dim"]),
        (lambda: load_config("digits-quick", ["hidden_size=3"]), ["model.overrides.embed_dim"]),
        (lambda: load_config("digits-quick", ["model.depth=3"]), ["model.overrides.depth"]),
        (lambda: load_config("digits-quick", ["batch_size=3"]), ["train.batch_size"]),
        (lambda: load_config("digits-quick", ["batch-size=3"]), ["train.batch_size"]),
        (lambda: load_config("digits-quick", ["train.learning_rate=3"]), ["optim.lr"]),
        (lambda: load_config("digits-quick", ["optimizer=sgd"]), ["optim.name"]),
        (lambda: load_config("digits-quick", ["search.num_layers=[2]"]), ["model.overrides.depth"]),
    ],
)
def test_every_place_that_refuses_a_name_knows_them(
    refused: Callable[[], object], meant: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        refused()
    assert f"did you mean {' or '.join(map(repr, meant))}?" in str(caught.value)


@pytest.mark.parametrize(
    "refused",
    [
        lambda name: create_model("vit_cifar", **{name: 3}),
        lambda name: create_model("vit_cifar", name),
        lambda name: create_model(name),
        lambda name: create_model("vit_cifar", act=name),
        lambda name: create_model("vit_cifar", depth=name),
        lambda name: Registry("thing")[name],
        lambda name: near_names(name),
    ],
)
def test_messages_stay_short_whatever_the_name(refused: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        refused("x" * 300_000)
    assert len(str(caught.value)) < 1500


def near_names(name: str) -> None:
    raise UnknownNameError("thing", name, [f"{number} things" for number in range(100_000)])


def test_an_unknown_key_ends_its_sentence() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'optim\.zzz'\. Accepted: name, lr, .*\.$"):
        load_config("digits-quick", ["optim.zzz=1"])
    with pytest.raises(ConfigError, match=r"'optim\.lrr': did you mean 'optim\.lr'\? Accepted: "):
        load_config("digits-quick", ["optim.lrr=1"])
    with pytest.raises(ConfigError) as caught:
        load_config("digits-quick", ["optim.zzz=1", "train.zzz=1"])
    assert ".;" not in str(caught.value)
    assert "; unknown key 'train.zzz'. Accepted: epochs, " in str(caught.value)
    assert str(caught.value).endswith(".")


def test_an_unknown_name_ends_its_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^unknown global_pool 'zz'\. Known: '', avg, map, tok"):
        create_model("vit_cifar", global_pool="zz")
    with pytest.raises(ConfigError, match=r"^unknown thing 'pleas': did you mean 'please'\? Known"):
        raise UnknownNameError("thing", "pleas", ["please"])
