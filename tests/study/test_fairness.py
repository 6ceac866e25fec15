"""What a comparison refuses, each with its reason."""

from pathlib import Path

import pytest

from saccade.errors import ConfigError, UnknownNameError
from saccade.runs import RunFolder
from saccade.study import compare
from saccade.study.comparison import ComparisonFolder, Job
from saccade.study.comparison.fairness import UnfairError
from tests.study.tiny_comparison import tiny_plan


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("train.early_stopping_patience=3", "another number of epochs"),
        ("optim.schedule=plateau", "another schedule"),
        ("train.batch_size=auto", "batch size that adapts"),
        ("performer.train.epochs=9", "performer.train.epochs=9 is for performer alone"),
        ("taylor:optim.lr=0.1", "is for taylor alone"),
    ],
)
def test_unfair_settings(tmp_path: Path, override: str, told: str) -> None:
    with pytest.raises(UnfairError, match=told):
        tiny_plan(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.attention=taylor", "--attention decides model.attention"),
        ("run.seed=7", "--seeds decides run.seed"),
        ("data.fold=1", "--folds decides data.fold"),
        ("run.test=false", "made on the test images"),
        ("model.attention_options.num_feature=8", "did you mean 'num_features'"),
        ("train.epoch=3", "did you mean 'train.epochs'"),
        ("train.batch_size=-3", "train.batch_size=-3: input should be greater than"),
        ("train.batch_size=6.4e1", "train.batch_size='6.4e1': input should be a valid integer"),
    ],
)
def test_settings_that_are_decided_elsewhere_or_unknown(
    tmp_path: Path, override: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        tiny_plan(tmp_path, override)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("foo=1", "^unknown model option 'foo'"),
        ("attn_drop_rat=0.1", "^unknown .* did you mean 'attn_drop_rate'"),
        ("attn_drop_rate=7", "attn_drop_rate=7: expected a number"),
    ],
)
def test_bad_options_of_the_model_are_not_called_unfair(
    tmp_path: Path, override: str, told: str
) -> None:
    plan = tiny_plan(tmp_path, f"model.overrides.{override}")
    with pytest.raises(ConfigError, match=told):
        compare(plan, tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attentions": ["softmax"]}, "only 'softmax' to compare"),
        ({"attentions": []}, "nothing to compare"),
        ({"attentions": ["softmax", "softmax"]}, "named twice"),
        ({"baseline": "taylor"}, "baseline='taylor' is not among"),
        ({"seeds": 0}, "seeds=0: wants at least 1"),
        ({"folds": 1}, "folds=1: wants at least 2"),
    ],
)
def test_what_cannot_be_compared(tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tiny_plan(tmp_path, **options)


def test_unknown_attention_suggests(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'taylorshift'"):
        tiny_plan(tmp_path, attentions=["softmax", "taylorshft"])


def test_attention_dropout_on_one_side_is_refused(tmp_path: Path) -> None:
    drop = "model.overrides.attn_drop_rate=0.1"
    with pytest.raises(UnfairError, match="performer has no weights to drop"):
        compare(tiny_plan(tmp_path, drop), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_what_no_run_could_do_here_is_refused_before_any_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tiny_plan(tmp_path, "train.precision=fp16", "train.device=cpu")
    with pytest.raises(ConfigError, match=r"fp16.* needs a GPU"):
        compare(half, tmp_path / "study", quiet=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="use --jobs, not torchrun"):
        compare(tiny_plan(tmp_path), tmp_path / "study", quiet=True)
    assert not (tmp_path / "study").exists()


def test_attention_dropout_on_all_sides_is_fair(tmp_path: Path) -> None:
    words = ["model.overrides.attn_drop_rate=0.1", "train.epochs=1", "data.num_train=60"]
    plan = tiny_plan(tmp_path, *words, attentions=("softmax", "taylor"), seeds=1)
    assert compare(plan, tmp_path / "study", quiet=True)["complete"]


def test_options_go_to_the_attentions_that_have_them(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path, "model.attention_options.num_features=8")
    options = {job.attention: plan.config(job).model.attention_options for job in plan.jobs()}
    assert options == {"softmax": {}, "taylorshift": {}, "performer": {"num_features": 8}}


def test_configs_differ_in_attention_and_seed_alone(tmp_path: Path) -> None:
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
    for plan, told in changed:
        with pytest.raises(ConfigError, match=f"started with another .*{told}"):
            ComparisonFolder.start(tmp_path / "study", plan, resume=True)


def test_data_may_have_moved_when_a_comparison_goes_on(tmp_path: Path) -> None:
    ComparisonFolder.start(tmp_path / "study", tiny_plan(tmp_path), resume=False)
    moved = tiny_plan(tmp_path, "data.root=/elsewhere")
    folder = ComparisonFolder.start(tmp_path / "study", moved, resume=True)
    assert folder.plan.base.data.root == Path("/elsewhere")
    assert ComparisonFolder.open(folder.path).plan == moved


def test_an_out_that_is_something_else_is_refused(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        ComparisonFolder.start(tmp_path / "file", plan, resume=True)
    with pytest.raises(ConfigError, match=r"is not a comparison \(it has '(file|tiny.yaml)'\)"):
        ComparisonFolder.start(tmp_path, plan, resume=True)
    run = RunFolder.create(tmp_path / "run", plan.config(Job("softmax", 0)))
    with pytest.raises(ConfigError, match="is not a comparison"):
        ComparisonFolder.start(run.path, plan, resume=True)
    with pytest.raises(ConfigError, match=r"it has no study.json"):
        ComparisonFolder.open(tmp_path)


def test_a_folder_killed_before_its_plan_was_written_is_used(tmp_path: Path) -> None:
    out = tmp_path / "study"
    out.mkdir()
    (out / "base.yaml").write_text("model:")
    (out / ".study.json.4711").write_text("{")
    plan = tiny_plan(tmp_path)
    assert ComparisonFolder.start(out, plan, resume=True).plan == plan


def test_a_search_is_not_a_comparison(tmp_path: Path) -> None:
    plan = tiny_plan(tmp_path)
    folder = ComparisonFolder.start(tmp_path / "study", plan, resume=False)
    study = folder.path / "study.json"
    study.write_text(study.read_text().replace('"compare"', '"tune"'))
    with pytest.raises(ConfigError, match="another kind: tune"):
        _ = ComparisonFolder.open(folder.path).plan
    study.write_text("{")
    with pytest.raises(ConfigError, match=r"study.json' cannot be read"):
        _ = ComparisonFolder.open(folder.path).plan
