"""Names that Hugging Face, timm and PyTorch scripts use for settings of saccade.

Errors about unknown names suggest these synonyms before similar spellings. Spelling alone misleads:
`hidden_size` is spelled like `mlp_hidden_dim` but means `embed_dim`.
"""

from __future__ import annotations

__all__ = ["has_no_counterpart", "synonyms"]

MODEL_FIELDS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("embed_dim",),
    "d_model": ("embed_dim",),
    "model_dim": ("embed_dim",),
    "dim": ("embed_dim",),
    "width": ("embed_dim",),
    "n_embd": ("embed_dim",),
    "embed_dims": ("embed_dim",),
    "num_hidden_layers": ("depth",),
    "num_layers": ("depth",),
    "n_layers": ("depth",),
    "n_layer": ("depth",),
    "num_blocks": ("depth",),
    "num_attention_heads": ("num_heads",),
    "n_heads": ("num_heads",),
    "n_head": ("num_heads",),
    "nhead": ("num_heads",),
    "heads": ("num_heads",),
    "attn_head_dim": ("head_dim",),
    "dim_head": ("head_dim",),
    "intermediate_size": ("mlp_hidden_dim", "mlp_ratio"),
    "dim_feedforward": ("mlp_hidden_dim", "mlp_ratio"),
    "mlp_dim": ("mlp_hidden_dim", "mlp_ratio"),
    "ffn_dim": ("mlp_hidden_dim", "mlp_ratio"),
    "ffn_ratio": ("mlp_ratio",),
    "hidden_act": ("act",),
    "act_layer": ("act",),
    "activation": ("act",),
    "dropout": ("proj_drop_rate", "pos_drop_rate", "drop_rate"),
    "hidden_dropout": ("proj_drop_rate", "pos_drop_rate"),
    "hidden_dropout_prob": ("proj_drop_rate", "pos_drop_rate"),
    "proj_drop": ("proj_drop_rate",),
    "emb_dropout": ("pos_drop_rate",),
    "pos_drop": ("pos_drop_rate",),
    "attention_probs_dropout_prob": ("attn_drop_rate",),
    "attention_dropout": ("attn_drop_rate",),
    "attn_drop": ("attn_drop_rate",),
    "classifier_dropout": ("drop_rate",),
    "drop": ("drop_rate",),
    "drop_path": ("drop_path_rate",),
    "stochastic_depth_prob": ("drop_path_rate",),
    "layer_norm_eps": ("norm_eps",),
    "layernorm_eps": ("norm_eps",),
    "layer_norm_epsilon": ("norm_eps",),
    "mlp_drop": ("act_drop_rate",),
    "activation_dropout": ("act_drop_rate",),
    "image_size": ("img_size",),
    "input_size": ("img_size",),
    "num_channels": ("in_chans",),
    "in_channels": ("in_chans",),
    "channels": ("in_chans",),
    "chans": ("in_chans",),
    "initializer_range": ("init_std",),
    "layerscale_value": ("init_values",),
    "layer_scale_init_value": ("init_values",),
    "num_labels": ("num_classes",),
    "id2label": ("class_names",),
    "label_names": ("class_names",),
    "pool": ("global_pool",),
    "pool_type": ("global_pool",),
    "pooling": ("global_pool",),
    "cls_token": ("class_token",),
    "use_cls_token": ("class_token",),
    "position_embedding_type": ("pos_embed",),
    "pos_embedding": ("pos_embed",),
    "embed_layer": ("stem",),
    "window_size": ("window",),
    "dynamic_img_pad": ("dynamic_img_size",),
    "interpolate_pos_encoding": ("dynamic_img_size",),
    "max_position_embeddings": ("max_seq_len",),
    "seq_len": ("max_seq_len",),
    "vocab_size": ("input_dim",),
    "attention_type": ("attention",),
    "attn_layer": ("attention",),
    "nb_features": ("num_features",),
}
"""Foreign name -> fields of a model's configuration, or options of its attention."""

RUN_KEYS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("optim.lr",),
    "base_lr": ("optim.lr",),
    "wd": ("optim.weight_decay",),
    "opt": ("optim.name",),
    "optimizer": ("optim.name",),
    "optimiser": ("optim.name",),
    "opt_betas": ("optim.betas",),
    "opt_eps": ("optim.eps",),
    "adam_epsilon": ("optim.eps",),
    "sched": ("optim.schedule",),
    "scheduler": ("optim.schedule",),
    "lr_scheduler": ("optim.schedule",),
    "lr_scheduler_type": ("optim.schedule",),
    "warmup": ("optim.warmup_epochs",),
    "warmup_steps": ("optim.warmup_epochs",),
    "warmup_ratio": ("optim.warmup_epochs",),
    "min_lr": ("optim.min_lr_ratio",),
    "decay_epochs": ("optim.step_epochs",),
    "decay_rate": ("optim.step_gamma",),
    "patience_epochs": ("optim.plateau_patience",),
    "clip_grad": ("optim.clip_norm",),
    "grad_clip": ("optim.clip_norm",),
    "max_grad_norm": ("optim.clip_norm",),
    "bs": ("train.batch_size",),
    "train_batch_size": ("train.batch_size",),
    "per_device_train_batch_size": ("train.batch_size",),
    "validation_batch_size": ("train.eval_batch_size",),
    "per_device_eval_batch_size": ("train.eval_batch_size",),
    "max_epochs": ("train.epochs",),
    "num_epochs": ("train.epochs",),
    "num_train_epochs": ("train.epochs",),
    "grad_accum_steps": ("train.accumulation",),
    "gradient_accumulation_steps": ("train.accumulation",),
    "amp": ("train.precision",),
    "amp_dtype": ("train.precision",),
    "bf16": ("train.precision",),
    "fp16": ("train.precision",),
    "mixed_precision": ("train.precision",),
    "ema": ("train.ema_decay",),
    "model_ema": ("train.ema_decay",),
    "model_ema_decay": ("train.ema_decay",),
    "smoothing": ("train.label_smoothing",),
    "label_smoothing_factor": ("train.label_smoothing",),
    "torch_compile": ("train.compile",),
    "torchcompile": ("train.compile",),
    "gradient_checkpointing": ("train.grad_checkpointing",),
    "early_stopping": ("train.early_stopping_patience",),
    "patience": ("train.early_stopping_patience",),
    "random_seed": ("run.seed",),
    "save_steps": ("run.checkpoint_every_steps",),
    "save_total_limit": ("run.keep_last",),
    "checkpoint_hist": ("run.keep_last",),
    "logging_steps": ("run.log_every_steps",),
    "log_interval": ("run.log_every_steps",),
    "report_to": ("run.trackers",),
    "dataset": ("data.name",),
    "dataset_name": ("data.name",),
    "data_dir": ("data.root",),
    "data_path": ("data.root",),
    "num_workers": ("data.workers",),
    "dataloader_num_workers": ("data.workers",),
    "val_split": ("data.val_fraction",),
    "validation_split": ("data.val_fraction",),
    "reprob": ("augment.erase_probability", "augment.erase"),
    "random_erasing": ("augment.erase",),
    "hflip": ("augment.flip",),
    "random_flip": ("augment.flip",),
    "mixup_alpha": ("augment.mixup",),
    "cutmix_alpha": ("augment.cutmix",),
    "mixup_prob": ("augment.mix_probability",),
    "aa": ("augment.policy",),
    "auto_augment": ("augment.policy",),
    "output": ("out",),
    "output_dir": ("out",),
    "save_dir": ("out",),
}
"""Foreign name -> keys of a run's configuration, or options of the command line."""

WITHOUT_COUNTERPART = frozenset(
    {
        "attn_pool",
        "block_fn",
        "eval_strategy",
        "hidden_sizes",
        "mask_ratio",
        "norm_layer",
        "num_key_value_heads",
        "num_patches",
        "output_attentions",
        "patch_drop_rate",
        "pre_norm",
        "qk_norm",
        "rope",
        "scale_attn_norm",
        "scale_mlp_norm",
        "use_mask_token",
    }
)
"""Foreign names without a counterpart in saccade; similar spellings mean something else."""

OVERRIDES = "model.overrides."
_OWN_FIELDS = {field for fields in MODEL_FIELDS.values() for field in fields}


def synonyms(name: str) -> list[str]:
    """Names in saccade for a name of another library: model fields, run keys, CLI options.

    Args:
        name: The name. Dashes, capitals and a section prefix are ignored.
    """
    word = _word(name)
    fields = list(MODEL_FIELDS.get(word, (word,) if word in _OWN_FIELDS else ()))
    return [*RUN_KEYS.get(word, ()), *fields, *(f"{OVERRIDES}{field}" for field in fields)]


def has_no_counterpart(name: str) -> bool:
    """True if another library uses the name for something that saccade does not have."""
    return _word(name) in WITHOUT_COUNTERPART


def _word(name: str) -> str:
    return name.strip("-").rpartition(".")[2].replace("-", "_").lower()
