"""Names that Hugging Face, timm and PyTorch scripts use for settings of saccade.

Errors about unknown names suggest these synonyms before similar spellings. Spelling alone misleads:
`hidden_size` is spelled like `mlp_hidden_dim` but means `embed_dim`.
"""

from __future__ import annotations

__all__ = ["has_no_counterpart", "synonyms"]


def _by_foreign_name(names: dict[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for own, foreign in names.items():
        for name in foreign.split():
            found[name] = (*found.get(name, ()), own)
    return found


_MODEL_FIELDS = {
    "embed_dim": "hidden_size d_model model_dim dim width n_embd embed_dims",
    "depth": "num_hidden_layers num_layers n_layers n_layer num_blocks",
    "num_heads": "num_attention_heads n_heads n_head nhead heads",
    "head_dim": "attn_head_dim dim_head",
    "mlp_hidden_dim": "intermediate_size dim_feedforward mlp_dim ffn_dim",
    "mlp_ratio": "intermediate_size dim_feedforward mlp_dim ffn_dim ffn_ratio",
    "act": "hidden_act act_layer activation",
    "proj_drop_rate": "dropout hidden_dropout hidden_dropout_prob proj_drop",
    "pos_drop_rate": "dropout hidden_dropout hidden_dropout_prob emb_dropout pos_drop",
    "drop_rate": "dropout classifier_dropout drop",
    "attn_drop_rate": "attention_probs_dropout_prob attention_dropout attn_drop",
    "drop_path_rate": "drop_path stochastic_depth_prob",
    "norm_eps": "layer_norm_eps layernorm_eps layer_norm_epsilon",
    "act_drop_rate": "mlp_drop activation_dropout",
    "img_size": "image_size input_size",
    "in_chans": "num_channels in_channels channels chans",
    "init_std": "initializer_range",
    "init_values": "layerscale_value layer_scale_init_value",
    "num_classes": "num_labels",
    "class_names": "id2label label_names",
    "global_pool": "pool pool_type pooling",
    "class_token": "cls_token use_cls_token",
    "pos_embed": "position_embedding_type pos_embedding",
    "stem": "embed_layer",
    "window": "window_size",
    "dynamic_img_size": "dynamic_img_pad interpolate_pos_encoding",
    "max_seq_len": "max_position_embeddings seq_len",
    "input_dim": "vocab_size",
    "attention": "attention_type attn_layer",
    "num_features": "nb_features",
}
_RUN_KEYS = {
    "optim.lr": "learning_rate base_lr",
    "optim.weight_decay": "wd",
    "optim.name": "opt optimizer optimiser",
    "optim.betas": "opt_betas",
    "optim.eps": "opt_eps adam_epsilon",
    "optim.schedule": "sched scheduler lr_scheduler lr_scheduler_type",
    "optim.warmup_epochs": "warmup warmup_steps warmup_ratio",
    "optim.min_lr_ratio": "min_lr",
    "optim.step_epochs": "decay_epochs",
    "optim.step_gamma": "decay_rate",
    "optim.plateau_patience": "patience_epochs",
    "optim.clip_norm": "clip_grad grad_clip max_grad_norm",
    "train.batch_size": "bs train_batch_size per_device_train_batch_size",
    "train.eval_batch_size": "validation_batch_size per_device_eval_batch_size",
    "train.epochs": "max_epochs num_epochs num_train_epochs",
    "train.accumulation": "grad_accum_steps gradient_accumulation_steps",
    "train.precision": "amp amp_dtype bf16 fp16 mixed_precision",
    "train.ema_decay": "ema model_ema model_ema_decay",
    "train.label_smoothing": "smoothing label_smoothing_factor",
    "train.compile": "torch_compile torchcompile",
    "train.grad_checkpointing": "gradient_checkpointing",
    "train.early_stopping_patience": "early_stopping patience",
    "run.seed": "random_seed",
    "run.checkpoint_every_steps": "save_steps",
    "run.keep_last": "save_total_limit checkpoint_hist",
    "run.log_every_steps": "logging_steps log_interval",
    "run.trackers": "report_to",
    "data.name": "dataset dataset_name",
    "data.root": "data_dir data_path",
    "data.workers": "num_workers dataloader_num_workers",
    "data.val_fraction": "val_split validation_split",
    "augment.erase_probability": "reprob",
    "augment.erase": "reprob random_erasing",
    "augment.flip": "hflip random_flip",
    "augment.mixup": "mixup_alpha",
    "augment.cutmix": "cutmix_alpha",
    "augment.mix_probability": "mixup_prob",
    "augment.policy": "aa auto_augment",
    "out": "output output_dir save_dir",
}

MODEL_FIELDS = _by_foreign_name(_MODEL_FIELDS)
"""Foreign name -> fields of a model's configuration, or options of its attention."""
RUN_KEYS = _by_foreign_name(_RUN_KEYS)
"""Foreign name -> keys of a run's configuration, or options of the command line."""

WITHOUT_COUNTERPART = {
    *("attn_pool", "block_fn", "eval_strategy", "hidden_sizes", "mask_ratio", "norm_layer"),
    *("num_key_value_heads", "num_patches", "output_attentions", "patch_drop_rate", "pre_norm"),
    *("qk_norm", "rope", "scale_attn_norm", "scale_mlp_norm", "use_mask_token"),
}
"""Foreign names without a counterpart in saccade; similar spellings mean something else."""

OVERRIDES = "model.overrides."


def synonyms(name: str) -> list[str]:
    """Names in saccade for a name of another library: model fields, run keys, CLI options.

    Args:
        name: The name. Dashes, capitals and a section prefix are ignored.
    """
    word = _word(name)
    fields = list(MODEL_FIELDS.get(word, (word,) if word in _MODEL_FIELDS else ()))
    return [*RUN_KEYS.get(word, ()), *fields, *(f"{OVERRIDES}{field}" for field in fields)]


def has_no_counterpart(name: str) -> bool:
    """True if another library uses the name for something that saccade does not have."""
    return _word(name) in WITHOUT_COUNTERPART


def _word(name: str) -> str:
    return name.strip("-").rpartition(".")[2].replace("-", "_").lower()
