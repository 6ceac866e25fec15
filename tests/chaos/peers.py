"""Small, fair training scripts that save and go on as their documentation has it.

Each trains the same small network on the same digits for the same steps, saves as often, and goes
on from its newest save when it is started again. The digest of the weights that it ends with is
written beside its folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

EPOCHS, BATCH, SAVE_EVERY = 3, 24, 2
NUM_TRAIN = 160


def make_network() -> nn.Module:
    """A network with dropout, so that the state of the generator matters."""
    torch.manual_seed(0)
    hidden = 64
    return nn.Sequential(nn.Linear(64, hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, 10))


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = torch.tensor(data.data[:NUM_TRAIN] / 16, dtype=torch.float32)
    return images, torch.tensor(data.target[:NUM_TRAIN])


def batches(epoch: int) -> Iterator[Tensor]:
    """The same order in each process: that of the epoch."""
    order = torch.randperm(NUM_TRAIN, generator=torch.Generator().manual_seed(epoch))
    yield from order.split(BATCH)


def write_digest(folder: Path, network: nn.Module) -> None:
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    folder.with_name(f"{folder.name}.digest").write_text(digest.hexdigest())


def train_plain(folder: Path) -> int:
    """A loop with `torch.save`, as in PyTorch's tutorial on saving a general checkpoint."""
    network, (images, labels) = make_network(), digits()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    path, step = folder / "checkpoint.pt", 0
    if path.exists():
        saved = torch.load(path)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
        step = saved["step"]
    number = 0
    for epoch in range(EPOCHS):
        for index in batches(epoch):
            number += 1
            if number <= step:
                continue
            loss = nn.functional.cross_entropy(network(images[index]), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % SAVE_EVERY == 0:
                torch.save(
                    {
                        "model": network.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "generator": torch.get_rng_state(),
                        "step": number,
                    },
                    path,
                )
    write_digest(folder, network)
    return 0


class _Step:
    """The step reached, which accelerate saves with the rest."""

    def __init__(self) -> None:
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def train_accelerate(folder: Path) -> int:
    """accelerate's `save_state` and `load_state`, with its own naming of checkpoints."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    project = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=3)
    accelerator = Accelerator(cpu=True, project_config=project)
    network, (images, labels) = make_network(), digits()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    network, optimizer = accelerator.prepare(network, optimizer)
    at = _Step()
    accelerator.register_for_checkpointing(at)
    saves = sorted((folder / "checkpoints").glob("checkpoint_*"))
    if saves:
        accelerator.load_state()
        newest = max(int(save.name.rpartition("_")[2]) for save in saves)
        accelerator.project_configuration.iteration = newest + 1
    step, number = at.number, 0
    for epoch in range(EPOCHS):
        for index in batches(epoch):
            number += 1
            if number <= step:
                continue
            loss = nn.functional.cross_entropy(network(images[index]), labels[index])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            at.number = number
            if number % SAVE_EVERY == 0:
                accelerator.save_state()
    write_digest(folder, accelerator.unwrap_model(network))
    return 0


class _Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class _Digits(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.images, self.labels = digits()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"images": self.images[index], "labels": self.labels[index]}


def train_hf_trainer(folder: Path) -> int:
    """Hugging Face's Trainer with `resume_from_checkpoint`."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    options: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": EPOCHS,
        "save_strategy": "steps",
        "save_steps": SAVE_EVERY,
        "save_total_limit": 3,
        "learning_rate": 1e-2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 0,
        "logging_strategy": "no",
    }
    network = _Classifier()
    trainer = Trainer(
        model=network,
        args=TrainingArguments(output_dir=str(folder), **options),
        train_dataset=_Digits(),
    )
    has_saves = get_last_checkpoint(str(folder)) is not None
    trainer.train(resume_from_checkpoint=True if has_saves else None)
    write_digest(folder, network)
    return 0


def train_saccade(folder: Path) -> int:
    """saccade's run, with its digest beside its folder like the others'."""
    from tests.chaos.bodies import run_state, train_run

    code = train_run(folder)
    if code == 0:
        state = run_state(folder)
        digest = hashlib.sha256(b"".join(state[name] for name in sorted(state)))
        folder.with_name(f"{folder.name}.digest").write_text(digest.hexdigest())
    return code
