"""Settings, arguments and folders that a comparison refuses."""

import json
from pathlib import Path

import pytest

from saccade.errors import ConfigError, UnknownNameError
from saccade.io import sealed
from saccade.runs import RunFolder
from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Job
from saccade.study.comparison.fairness import UnfairError
from tests.study.tiny_comparison import tiny_plan


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.early_stopping_patience=3", "a different number of epochs"),
        ("optim.schedule=plateau", "a different schedule"),
        ("train.batch_size=auto", "an adaptive batch size"),
        ("performer.train.epochs=9", "performer.train.epochs=9 is for performer only"),
        ("taylor:optim.lr=0.1", "is for taylor only"),
    ],
)
def test_unfair_settings_are_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UnfairError, match=message):
        tiny_plan(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.attention=taylor", "use --attention to set model.attention"),
        ("run.seed=7", "use --seeds to set run.seed"),
        ("data.fold=1", "use --folds to set data.fold"),
        ("run.test=false", "run.test must be true"),
        ("model.attention_options.num_feature=8", "did you mean 'num_features'"),
        ("train.epoch=3", "did you mean 'train.epochs'"),
        ("train.batch_size=-3", "train.batch_size=-3: input should be greater than"),
        ("train.batch_size=6.4e1", "train.batch_size='6.4e1': input should be a valid integer"),
    ],
)
def test_reserved_and_unknown_settings_are_refused(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_plan(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo=1", "^unknown model option 'foo'"),
        ("attn_drop_rat=0.1", "^unknown .* did you mean 'attn_drop_rate'"),
        ("attn_drop_rate=7", "attn_drop_rate must be a number"),
    ],
)
def test_invalid_model_options_are_not_called_unfair(
    tmp_path: Path, override: str, message: str
) -> None:
    plan = tiny_plan(tmp_path, f"model.overrides.{override}")
    with pytest.raises(ConfigError, match=message):
        compare(plan, tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attentions": ["softmax"]}, "only 'softmax' to compare"),
        ({"attentions": []}, "nothing to compare"),
        ({"attentions": ["softmax", "softmax"]}, "named twice"),
        ({"baseline": "taylor"}, "baseline must be one of .*, got 'taylor'"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"folds": 1}, "folds must be at least 2, got 1"),
    ],
)
def test_invalid_plan_arguments_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_plan(tmp_path, **options)


def test_unknown_attention_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'taylorshift'"):
        tiny_plan(tmp_path, attentions=["softmax", "taylorshft"])


def test_attention_dropout_for_only_some_attentions_is_refused(tmp_path: Path) -> None:
    drop = "model.overrides.attn_drop_rate=0.1"
    with pytest.raises(UnfairError, match="performer has no weights to drop"):
        compare(tiny_plan(tmp_path, drop), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_default_attention_dropout_for_only_some_attentions_is_refused(tmp_path: Path) -> None:
    taylorir = ["model.name=taylorir_small", "model.overrides={embed_dim: 16, num_heads: 2}"]
    plan = tiny_plan(tmp_path, *taylorir, attentions=("taylor", "performer"))
    with pytest.raises(UnfairError, match=r"performer has no weights to drop.*attn_drop_rate=0"):
        compare(plan, tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_settings_unsupported_by_the_machine_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tiny_plan(tmp_path, "train.precision=fp16", "train.device=cpu")
    with pytest.raises(ConfigError, match=r"fp16.* needs a GPU"):
        compare(half, tmp_path / "study", quiet=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="use --jobs, not torchrun"):
        compare(tiny_plan(tmp_path), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_attention_dropout_for_all_attentions_is_accepted(tmp_path: Path) -> None:
    words = ["model.overrides.attn_drop_rate=0.1", "train.epochs=1", "data.num_train=60"]
    plan = tiny_plan(tmp_path, *words, attentions=("softmax", "taylor"), seeds=1)
    assert compare(plan, tmp_path / "study", quiet=True)["complete"]


def test_attention_options_apply_only_to_attentions_that_have_them(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, "model.attention_options.num_features=8")
    options = {job.attention: plan.config(job).model.attention_options for job in plan.jobs()}
    assert options == {"softmax": {}, "taylorshift": {}, "performer": {"num_features": 8}}


def test_configs_differ_only_in_attention_and_seed(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    plain = [plan.config(job).model_dump() for job in plan.jobs()]
    for values, job in zip(plain, plan.jobs(), strict=True):
        assert values["model"].pop("attention") == job.attention
        assert values["run"].pop("seed") == job.seed
    assert all(values == plain[0] for values in plain)


def test_resume_can_add_seeds(tmp_path: Path) -> None:
    first = ComparisonFolder.start(tmp_path / "study", tiny_plan(tmp_path, seeds=1), resume=False)
    more = ComparisonFolder.start(tmp_path / "study", tiny_plan(tmp_path, seeds=3), resume=True)
    assert more.plan.seeds == (0, 1, 2)
    assert more.plan.created == first.plan.created
    assert more.plan.jobs()[: len(first.plan.jobs())] == first.plan.jobs()


def test_resume_with_another_plan_is_refused(tmp_path: Path) -> None:
    ComparisonFolder.start(tmp_path / "study", tiny_plan(tmp_path), resume=False)
    changed = [
        (tiny_plan(tmp_path, "optim.lr=0.5"), r"optim.lr \(0.01 -> 0.5\)"),
        (tiny_plan(tmp_path, seeds=1), r"seeds \(0 1 -> 0\)"),
        (tiny_plan(tmp_path, folds=3), r"folds \(None -> 3\)"),
        (tiny_plan(tmp_path, attentions=("softmax", "taylor")), "attentions"),
        (tiny_plan(tmp_path, baseline="performer"), "baseline"),
    ]
    for plan, message in changed:
        with pytest.raises(ConfigError, match=f"started with another .*{message}"):
            ComparisonFolder.start(tmp_path / "study", plan, resume=True)


def test_data_root_may_change_on_resume(tmp_path: Path) -> None:
    ComparisonFolder.start(tmp_path / "study", tiny_plan(tmp_path), resume=False)
    moved = tiny_plan(tmp_path, "data.root=/elsewhere")
    folder = ComparisonFolder.start(tmp_path / "study", moved, resume=True)
    assert folder.plan.base.data.root == Path("/elsewhere")
    assert ComparisonFolder.open(folder.path).plan == moved


def test_out_with_other_files_is_refused(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="must be a folder, got the file"):
        ComparisonFolder.start(tmp_path / "file", plan, resume=True)
    with pytest.raises(
        ConfigError, match=r"or a comparison, got .*, which contains '(file|tiny.yaml)'"
    ):
        ComparisonFolder.start(tmp_path, plan, resume=True)
    run = RunFolder.create(tmp_path / "run", plan.config(Job("softmax", 0)))
    with pytest.raises(ConfigError, match="must be a new folder or a comparison"):
        ComparisonFolder.start(run.path, plan, resume=True)
    with pytest.raises(ConfigError, match=r"it has no study.json"):
        ComparisonFolder.open(tmp_path)


def test_folder_of_an_interrupted_start_is_accepted(tmp_path: Path) -> None:
    out = tmp_path / "study"
    out.mkdir()
    (out / "base.yaml").write_text("model:")
    (out / ".study.json.4711").write_text("{")
    plan = tiny_plan(tmp_path)
    assert ComparisonFolder.start(out, plan, resume=True).plan == plan


def test_folder_of_a_search_is_refused(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    folder = ComparisonFolder.start(tmp_path / "study", plan, resume=False)
    study = folder.path / "study.json"
    study.write_text(json.dumps(sealed({**json.loads(study.read_text()), "kind": "tune"})))
    with pytest.raises(ConfigError, match="not a comparison of version 1: tune"):
        _ = ComparisonFolder.open(folder.path).plan
    study.write_text("{")
    with pytest.raises(ConfigError, match=r"study.json' is not valid JSON"):
        _ = ComparisonFolder.open(folder.path).plan
