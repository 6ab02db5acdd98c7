"""Training on Lightning: one run into one folder, resumed exactly where it stopped, tested once at the end.

Everything random in a step is drawn from (seed, step), and everything random in an epoch from (seed, epoch), so a run that
is killed and resumed, or spread over processes, does what it would have done. The folder holds ``config.json``,
``history.csv``, ``best.ckpt``, ``last.ckpt``, TensorBoard's files, and at the end ``result.json``.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset

from ohmformer.experiments.molecules.batches import Batch, Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.encodings import pretrained
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.table import NETWORKX_RING
from ohmformer.graph.files import whole_file, write_table

ADVICE = (
    ".*(num_workers|in eval mode at the start|lr_scheduler.step|treespec|Checkpoint directory|number of training batches).*"
)
"""What Lightning warns of and what is meant to be so here."""
EVALUATED = 500
"""Molecules in a batch of evaluation."""

MEASURED = 2000
"""Training molecules on which batch norms' statistics are measured before an evaluation."""


def draw_of(seed: int, what: int, number: int) -> torch.Generator:
    """The generator of a step or an epoch."""
    return torch.Generator().manual_seed((seed * 4 + what) * 1_000_000_007 + number)


EPOCH, STEP, RELABEL, EVALUATION = range(4)


def rate(config: RunConfig, step: int, steps: int) -> float:
    """The learning rate of a step over its largest value."""
    if config.schedule == "one-cycle":
        rise = max(1, round(0.2 * steps))
        if step < rise:
            return 0.04 + 0.48 * (1 - math.cos(math.pi * step / rise))
        return 1e-3 + 0.4995 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
    epoch = step * config.epochs / steps
    return 2 ** -(epoch / config.half_life if config.schedule == "halving" else epoch // config.half_life)


class _Batches(Dataset):
    """Batches of a split, each a list of molecules; a process takes its share of every one."""

    def __init__(self, split: Split, order: Tensor, size: int, rank: int = 0, world: int = 1) -> None:
        self.split, self.rank, self.world = split, rank, world
        self.chunks = order.split(size)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, i: int) -> tuple[Batch, int]:
        """Some molecules, and how many all processes have together."""
        chunk = self.chunks[i]
        return self.split.take(chunk[self.rank :: self.world]), len(chunk)


class Regression(L.LightningModule):
    """L1 regression of one number per molecule."""

    def __init__(self, config: RunConfig, data: RunData) -> None:
        super().__init__()
        self.config, self.data = config, data
        self.model = MoleculeModel(config, len(data.labels), data.most_nodes)
        self.averaged = _averaged(self.model, config.average) if config.average else None
        self.history: list[dict[str, int | float]] = []
        self._sums = [0.0, 0.0]
        self._began = 0.0

    @property
    def judged(self) -> MoleculeModel:
        """The model that is validated and tested: with the mean of the weights if there is one."""
        if self.averaged is None:
            return self.model
        assert isinstance(self.averaged.module, MoleculeModel)
        return self.averaged.module

    def configure_optimizers(self) -> Any:
        """AdamW with two rates, one for the encoding."""
        config = self.config
        encoding = list(self.model.encoding.parameters())
        rest = [p for module in (self.model.backbone, self.model.readout) for p in module.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": rest, "lr": config.lr, "weight_decay": 0.0 if config.adam else config.weight_decay}
        ]
        if encoding:
            groups.append({"params": encoding, "lr": config.encoding_lr, "betas": (0.9, 0.99)})
        optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
        steps = config.epochs * -(-len(self.data.train) // config.batch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step, steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> DataLoader:
        """An epoch's batches, shuffled by (seed, epoch)."""
        data, seed, epoch = self.data, self.config.seed, self.current_epoch
        split = data.train
        if self.config.relabel:
            split = data.relabelled(data.train_table, draw_of(seed, RELABEL, epoch), split)
        order = torch.randperm(len(split), generator=draw_of(seed, EPOCH, epoch))
        return self._loader(split, order, self.config.batch)

    def val_dataloader(self) -> DataLoader:
        """The validation molecules in order."""
        return self._loader(self.data.valid, torch.arange(len(self.data.valid)), EVALUATED)

    def _loader(self, split: Split, order: Tensor, size: int) -> DataLoader:
        world = self.trainer.world_size
        return DataLoader(_Batches(split, order, size, self.global_rank, world), batch_size=None, collate_fn=_same)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Batches move themselves."""
        return batch[0].to(device), batch[1]

    def training_step(self, batch: tuple[Batch, int], index: int) -> Tensor:
        """The mean error; scaled so that the mean over processes is the mean over molecules."""
        molecules, total = batch
        error = (self.model(molecules, draw_of(self.config.seed, STEP, self.global_step)) - molecules.y).abs().sum()
        self._sums[0] += float(error.detach())
        self._sums[1] += len(molecules.y)
        return error * (self.trainer.world_size / total)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the new weights into the mean."""
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def on_train_epoch_start(self) -> None:
        """Start the clock."""
        self._sums, self._began = [0.0, 0.0], time.perf_counter()

    def on_validation_start(self) -> None:
        """Measure the batch norms' statistics for the weights as they are: running means lag behind a learned encoding."""
        if not self.trainer.sanity_checking:
            measure_norms(self.judged, self.data.train, self.config.seed, self.global_rank, self.trainer.world_size)

    def validation_step(self, batch: tuple[Batch, int], index: int) -> None:
        """Add up the errors."""
        error = (self.judged(batch[0], draw_of(self.config.seed, EVALUATION, index)) - batch[0].y).abs()
        self.log("valid", error.mean(), on_epoch=True, sync_dist=True, batch_size=len(error))

    def on_validation_epoch_end(self) -> None:
        """Note the epoch."""
        if self.trainer.sanity_checking:
            return
        train = self._sums[0] / max(1.0, self._sums[1])
        valid = float(self.trainer.callback_metrics["valid"])
        self.log("train", train, sync_dist=True)
        if not math.isfinite(train):
            raise ValueError(f"expected a finite error in training, got {train} in epoch {self.current_epoch}")
        seconds = time.perf_counter() - self._began
        self.history.append({"epoch": self.current_epoch, "train": train, "valid": valid, "seconds": seconds})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """With the run's name and history."""
        checkpoint["config"], checkpoint["history"] = self.config.json(), self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Only of the same run."""
        self.history = checkpoint["history"]


def _averaged(model: MoleculeModel, stays: float) -> AveragedModel:
    """``mean <- b mean + (1 - b) weights`` a step, with b smaller at first so that the initial weights are forgotten."""

    def update(mean: Sequence[Tensor], weights: Sequence[Tensor], steps: Tensor | int) -> None:
        torch._foreach_lerp_(list(mean), list(weights), 1 - min(stays, (1 + int(steps)) / (10 + int(steps))))

    return AveragedModel(model, multi_avg_fn=update).requires_grad_(False)


def _same(x: Any) -> Any:
    return x


@torch.no_grad()
def measure_norms(model: MoleculeModel, split: Split, seed: int, rank: int = 0, world: int = 1) -> None:
    """Set the statistics of all batch norms to their means over some batches of training molecules, shared by processes."""
    training = model.training
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # plain means
        norm.train()
    for i, which in enumerate(torch.arange(min(len(split), MEASURED)).split(MEASURED // 10)):
        model(split.take(which[rank::world]), draw_of(seed, EVALUATION, i))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(training)


class WholeFiles(TorchCheckpointIO):
    """Checkpoints under a temporary name first, so that a full disk leaves the earlier ones as they are."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write, then rename."""
        with whole_file(Path(path)) as temporary:
            torch.save(checkpoint, temporary)


class _History(Callback):
    def __init__(self, path: Path, progress: Callable[[dict[str, int | float], int], None] | None) -> None:
        self.path, self.progress = path, progress

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Regression)
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        history = pl_module.history
        write_table(self.path, {name: [row[name] for row in history] for name in history[0]})
        if self.progress:
            self.progress(history[-1], pl_module.config.epochs)


def train(
    config: RunConfig,
    data: RunData,
    folder: Path,
    *,
    devices: int = 1,
    accelerator: str = "auto",
    progress: Callable[[dict[str, int | float], int], None] | None = None,
) -> dict[str, Any]:
    """Train, or go on training, and test the best weights; the content of ``result.json``.

    A folder with a result is not trained again; one with a checkpoint of another config is an error.
    """
    result = folder / "result.json"
    last = folder / "last.ckpt"
    check_same_run(config, folder)
    if result.is_file():
        return json.loads(result.read_text())
    module = Regression(config if config.starts == 1 or last.is_file() else _best_start(config, data, folder), data)
    if not last.is_file():
        pretrained(module.model.encoding, config, data.train_table)
        module.model.encoding.calibrate(data.train)
        with whole_file(folder / "config.json") as temporary:
            temporary.write_text(config.json())
    else:
        _check_weights(module, last)
    trainer = _trainer(config, folder, config.epochs, devices, accelerator, progress)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ADVICE)
            trainer.fit(module, ckpt_path=last if last.is_file() else None, weights_only=True)
        if trainer.is_global_zero:
            answer = _result(module, folder, trainer)
            with whole_file(result) as temporary:
                temporary.write_text(json.dumps(answer, indent=1))
    except OSError as error:
        raise ValueError(f"expected to write into {folder}: {error.strerror or error}; earlier files are intact") from error
    trainer.strategy.barrier()
    return json.loads(result.read_text())


def check_same_run(config: RunConfig, folder: Path) -> None:
    """A ValueError that says how, if the folder belongs to another run."""
    path = folder / "config.json"
    if path.is_file():
        other = RunConfig.of(json.loads(path.read_text()))
        if other != config:
            raise ValueError(f"expected the run of {folder}, got another: {other.differences(config)}")


def _check_weights(module: Regression, path: Path) -> None:
    """A ValueError if a checkpoint holds other weights than the model has, as one of another version may."""
    kept = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    mine = {name: x.shape for name, x in module.state_dict().items()}
    other = sorted(name for name, x in mine.items() if name not in kept or kept[name].shape != x)
    other += sorted(set(kept) - set(mine))
    if other:
        raise ValueError(f"expected the weights of this run in {path}, got others ({other[0]}); move it to begin again")


def _trainer(
    config: RunConfig, folder: Path, epochs: int, devices: int, accelerator: str, progress: Any, *, saved: bool = True
) -> L.Trainer:
    callbacks: list[Callback] = [_History(folder / "history.csv", progress)] if saved else []
    if saved:
        best = ModelCheckpoint(folder, "best", monitor="valid", save_last=True, enable_version_counter=False)
        callbacks.append(best)
    if config.patience is not None and saved:
        callbacks.append(EarlyStopping("valid", patience=config.patience, check_on_train_epoch_end=False))
    return L.Trainer(
        max_epochs=epochs, accelerator=accelerator, devices=devices, strategy="ddp" if devices > 1 else "auto",
        gradient_clip_val=config.clip, callbacks=callbacks, plugins=[WholeFiles()],
        logger=TensorBoardLogger(folder, name=None, version="") if saved else False, enable_checkpointing=saved,
        reload_dataloaders_every_n_epochs=1, use_distributed_sampler=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=100,
    )  # fmt: skip


def _best_start(config: RunConfig, data: RunData, folder: Path) -> RunConfig:
    """The config with the seed of the best of several initialisations after one epoch each."""
    from dataclasses import replace

    errors = []
    for i in range(config.starts):
        one = replace(config, seed=config.seed + 1000 * i)
        module = Regression(one, data)
        module.model.encoding.calibrate(data.train)
        _trainer(one, folder, 1, 1, "cpu", None, saved=False).fit(module)
        errors.append((module.history[-1]["valid"], one.seed))
    return replace(config, seed=min(errors)[1])


def _result(module: Regression, folder: Path, trainer: L.Trainer) -> dict[str, Any]:
    """The test molecules, read here and only here: as they are, renumbered at random, and by networkx's rings."""
    module.load_state_dict(torch.load(folder / "best.ckpt", weights_only=True, map_location="cpu")["state_dict"])
    model, data, history = module.judged.cpu().eval(), module.data, module.history
    table = data.table("test")
    test = data.split(table)
    predicted = predict(model, test)
    renumbered = data.relabelled(table, draw_of(module.config.seed, RELABEL, -1), test)
    unit = data.target.unit
    errors = {
        "test": float((predicted - test.y).abs().mean()) * unit,
        "test_relabelled": float((predict(model, renumbered) - test.y).abs().mean()) * unit,
    }
    if data.target.ring is not None:
        by_networkx = data.target.values(table, NETWORKX_RING)
        errors["test_networkx_rings"] = float((predicted - by_networkx).abs().mean())
    best = min(history, key=lambda row: row["valid"])
    return {
        **errors, "valid": best["valid"] * unit, "best_epoch": best["epoch"], "epochs": len(history),
        "seconds_per_epoch": sorted(row["seconds"] for row in history)[len(history) // 2], **model.parameter_counts(),
        "processes": trainer.world_size, "unseen_labels": data.unseen, "config": json.loads(module.config.json()),
    }  # fmt: skip


@torch.no_grad()
def predict(model: MoleculeModel, split: Split, *, seed: int = 0) -> Tensor:
    """The predictions for all molecules of a split."""
    model.eval()
    batches = torch.arange(len(split)).split(EVALUATED)
    return torch.cat([model(split.take(which), draw_of(seed, EVALUATION, i)) for i, which in enumerate(batches)])
