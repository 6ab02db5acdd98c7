"""Training with Lightning: one run in one folder, resumed exactly where it stopped, tested once at the end.

Everything random in an epoch is drawn from (seed, epoch), and everything random in a step from (seed, step, process). So a
run that is killed and resumed gives the same numbers. So does a run on several processes, up to rounding, unless its
encoding is random: then the processes draw other numbers than a single one. The folder contains ``config.json``,
``history.csv``, ``best.ckpt``, ``last.ckpt``, TensorBoard's files, and at the end ``result.json``.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from ohmformer.encoding.norm import RunningNorm
from ohmformer.experiments.molecules.batches import MoleculeBatch, Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.encodings import pretrained
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.table import NETWORKX_RING
from ohmformer.graph.extras import require
from ohmformer.graph.files import whole_file, write_table, write_text

try:
    import lightning as L
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.plugins import TorchCheckpointIO
except ImportError:
    require("lightning", "train")
    raise

ADVICE = (
    ".*(num_workers|in eval mode at the start|lr_scheduler.step|treespec|Checkpoint directory|number of training batches).*"
)
"""Lightning's warnings about behaviour that is intended here."""
EVALUATED = 500
"""Molecules per batch in validation and test."""

MEASURED = 2000
"""Number of training molecules used to measure batch norm statistics before an evaluation."""


def draw_of(seed: int, what: int, number: int) -> torch.Generator:
    """Return the random generator of a step or an epoch; ``what`` is one of EPOCH, STEP, RELABEL, EVALUATION."""
    return torch.Generator().manual_seed((seed * 4 + what) * 1_000_000_007 + number)


EPOCH, STEP, RELABEL, EVALUATION = range(4)


def rate(config: RunConfig, step: int, steps: int) -> float:
    """Compute the learning rate of a step, relative to the largest."""
    if config.schedule == "one-cycle":
        rise = max(1, round(0.2 * steps))
        if step < rise:
            return 0.04 + 0.48 * (1 - math.cos(math.pi * step / rise))
        return 1e-3 + 0.4995 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
    epoch = step * config.epochs / steps
    return 2 ** -(epoch / config.half_life if config.schedule == "halving" else epoch // config.half_life)


class _Batches(Dataset):
    """The batches of an epoch; each process takes its share of a batch, which may be empty."""

    def __init__(self, split: Split, order: Tensor, size: int, rank: int = 0, world: int = 1) -> None:
        self.split, self.rank, self.world = split, rank, world
        self.chunks = order.split(size)

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, i: int) -> tuple[MoleculeBatch, int]:
        """Return this process's share of a batch, and the number of molecules in the whole batch."""
        chunk = self.chunks[i]
        return self.split.take(chunk[self.rank :: self.world]), len(chunk)


class Training(L.LightningModule):
    """Train a model on the target of a run: one number per molecule, or a class."""

    def __init__(self, config: RunConfig, data: RunData) -> None:
        super().__init__()
        self.config, self.data = config, data
        self.model = MoleculeModel(config, len(data.labels), data.most_nodes, data.target.outputs)
        self.averaged = _averaged(self.model, config.average) if config.average else None
        self.history: list[dict[str, int | float]] = []
        self._train, self._valid = torch.zeros(2, dtype=torch.float64), torch.zeros(2)
        """Sum of errors and number of molecules in this epoch and process."""
        self._began = 0.0

    @property
    def judged(self) -> MoleculeModel:
        """The model that is validated and tested: the one with averaged weights, if it exists."""
        if self.averaged is None:
            return self.model
        assert isinstance(self.averaged.module, MoleculeModel)
        return self.averaged.module

    def configure_optimizers(self) -> Any:
        """Return AdamW with two learning rates, one of them for the encoding."""
        config = self.config
        model, encoding = self.model, list(self.model.encoding.parameters())
        rest = [p for module in (model.embedding, model.backbone, model.readout) for p in module.parameters()]
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
        """Return the batches of an epoch, shuffled by (seed, epoch)."""
        data, seed, epoch = self.data, self.config.seed, self.current_epoch
        split = data.train
        if self.config.relabel:
            split = data.relabelled(data.train_table, draw_of(seed, RELABEL, epoch), split)
        order = torch.randperm(len(split), generator=draw_of(seed, EPOCH, epoch))
        return self._loader(split, order, self.config.batch)

    def val_dataloader(self) -> DataLoader:
        """Return batches of the validation molecules, in order."""
        return self._loader(self.data.valid, torch.arange(len(self.data.valid)), EVALUATED)

    def _loader(self, split: Split, order: Tensor, size: int) -> DataLoader:
        world = self.trainer.world_size
        return DataLoader(_Batches(split, order, size, self.global_rank, world), batch_size=None, collate_fn=_same)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a batch to the device."""
        return batch[0].to(device), batch[1]

    def training_step(self, batch: tuple[MoleculeBatch, int], index: int) -> Tensor:
        """Compute the mean error, scaled so that its mean over processes is the mean over molecules."""
        molecules, total = batch
        draw = draw_of(self.config.seed, STEP, self.global_step * self.trainer.world_size + self.global_rank)
        with torch.random.fork_rng([]):
            torch.manual_seed(draw.initial_seed())  # dropout draws from the global generator
            error = self.data.target.loss(self.model(molecules, draw), molecules.y).sum()
        self._train += torch.tensor([float(error.detach()), len(molecules.y)])
        return error * (self.trainer.world_size / total)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average of the weights."""
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)

    def on_train_epoch_start(self) -> None:
        """Reset the sum of errors and the clock."""
        self._train, self._began = torch.zeros(2, dtype=torch.float64), time.perf_counter()

    def on_validation_start(self) -> None:
        """Re-measure the batch norm statistics, because running means lag behind a learned encoding."""
        self._valid = torch.zeros(2)
        if not self.trainer.sanity_checking:
            measure_norms(self.judged, self.data.train, self.config.seed, self.global_rank, self.trainer.world_size)

    def validation_step(self, batch: tuple[MoleculeBatch, int], index: int) -> None:
        """Add up the errors."""
        predicted = self.judged(batch[0], draw_of(self.config.seed, EVALUATION, index))
        error = self.data.target.error(predicted, batch[0].y)
        if len(error):
            self._valid += torch.stack([error.mean() * len(error), error.new_tensor(len(error))]).cpu()

    def on_validation_epoch_end(self) -> None:
        """Append the epoch to the history."""
        if self.trainer.sanity_checking:
            return
        # not by Lightning's mean over processes, which rounds their mean number of molecules to an integer
        train, valid = (
            float(total / count.clamp(min=1))
            for total, count in (
                self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum") for sums in (self._train, self._valid)
            )
        )
        self.log_dict({"train": train, "valid": valid})
        if not math.isfinite(train):
            raise ValueError(f"expected a finite error in training, got {train} in epoch {self.current_epoch}")
        seconds = time.perf_counter() - self._began
        self.history.append({"epoch": self.current_epoch, "train": train, "valid": valid, "seconds": seconds})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save configuration and history in the checkpoint."""
        checkpoint["config"], checkpoint["history"] = self.config.json(), self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the history."""
        self.history = checkpoint["history"]


def _averaged(model: MoleculeModel, decay: float) -> AveragedModel:
    """Average weights by ``mean <- b mean + (1 - b) weights``; b starts below ``decay``, to forget the initial weights."""

    def update(means: Any, weights: Any, steps: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(means, weights, steps)

    return AveragedModel(model, multi_avg_fn=update).requires_grad_(False)


def _same(x: Any) -> Any:
    return x


@torch.no_grad()
def measure_norms(model: MoleculeModel, split: Split, seed: int, rank: int = 0, world: int = 1) -> None:
    """Set all batch norm statistics to their means over batches of training molecules, divided among processes."""
    training = model.training
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | RunningNorm)]
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
    """Writes checkpoints through a temporary file, so that a full disk leaves the earlier ones intact."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write the checkpoint, then rename it."""
        with whole_file(Path(path)) as temporary:
            torch.save(checkpoint, temporary)


class _History(Callback):
    """Writes ``history.csv`` after every epoch and reports progress."""

    def __init__(self, path: Path, progress: Callable[[dict[str, int | float], int], None] | None) -> None:
        self.path, self.progress = path, progress

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Training)
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
    """Train, or resume training, and test the best weights; return the content of ``result.json``.

    A folder with a result is not trained again; a folder of another configuration raises an error.
    """
    require("tensorboard", "train")
    result = folder / "result.json"
    last = folder / "last.ckpt"
    check_same_run(config, folder)
    if result.is_file():
        return json.loads(result.read_text())
    if last.is_file():
        module = _of_checkpoint(last, data)
    else:
        module = Training(config if config.starts == 1 else _best_start(config, data, folder), data)
        pretrained(module.model.encoding, config, data.train_table)
        module.model.encoding.calibrate(data.train)
        write_text(folder / "config.json", config.json())
    trainer = _trainer(config, folder, config.epochs, devices, accelerator, progress)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ADVICE)
            trainer.fit(module, ckpt_path=last if last.is_file() else None, weights_only=True)
        if trainer.is_global_zero:
            answer = _result(config, module, folder, trainer)
            write_text(result, json.dumps(answer, indent=1))
    except OSError as error:
        raise ValueError(f"expected to write into {folder}: {error.strerror or error}; earlier files are intact") from error
    trainer.strategy.barrier()
    return json.loads(result.read_text())


def check_same_run(config: RunConfig, folder: Path) -> None:
    """Raise a ValueError that names the differences if the folder belongs to another run."""
    path = folder / "config.json"
    if path.is_file():
        other = RunConfig.of(json.loads(path.read_text()))
        if other != config:
            raise ValueError(f"expected the run of {folder}, got another: {other.differences(config)}")


def _of_checkpoint(path: Path, data: RunData) -> Training:
    """Build the model of a checkpoint; raise a ValueError for mismatching weights, as of another version."""
    checkpoint = torch.load(path, weights_only=True, map_location="cpu")
    module = Training(RunConfig.of(json.loads(checkpoint["config"])), data)
    kept = checkpoint["state_dict"]
    mine = {name: x.shape for name, x in module.state_dict().items()}
    other = sorted(name for name, x in mine.items() if name not in kept or kept[name].shape != x)
    other += sorted(set(kept) - set(mine))
    if other:
        raise ValueError(f"expected the weights of this run in {path}, got others ({other[0]}); move it to begin again")
    return module


def _trainer(
    config: RunConfig, folder: Path, epochs: int, devices: int, accelerator: str, progress: Any, *, saved: bool = True
) -> L.Trainer:
    """Return Lightning's trainer; ``saved=False`` for trials that write no files."""
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
    """Train several initialisations for one epoch each; return the configuration with the best seed."""
    errors = []
    for i in range(config.starts):
        one = replace(config, seed=config.seed + 1000 * i)
        module = Training(one, data)
        module.model.encoding.calibrate(data.train)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ADVICE)
            _trainer(one, folder, 1, 1, "cpu", None, saved=False).fit(module)
        errors.append((module.history[-1]["valid"], one.seed))
    return replace(config, seed=min(errors)[1])


def _result(config: RunConfig, module: Training, folder: Path, trainer: L.Trainer) -> dict[str, Any]:
    """Test the best weights on the test molecules, read only here: as they are, renumbered, and with networkx's rings."""
    module.load_state_dict(torch.load(folder / "best.ckpt", weights_only=True, map_location="cpu")["state_dict"])
    model, data, history = module.judged.cpu().eval(), module.data, module.history
    table = data.table("test")
    test = data.split(table)
    predicted = predict(model, test)
    renumbered = data.relabelled(table, draw_of(module.config.seed, RELABEL, -1), test)
    error, unit = data.target.error, data.target.unit
    errors = {
        "test": float(error(predicted, test.y).mean()) * unit,
        "test_relabelled": float(error(predict(model, renumbered), test.y).mean()) * unit,
    }
    if data.target.ring is not None:
        by_networkx = data.target.values(table, NETWORKX_RING)
        errors["test_networkx_rings"] = float((predicted - by_networkx).abs().mean())
    best = min(history, key=lambda row: row["valid"])
    return {
        **errors, "valid": best["valid"] * unit, "best_epoch": best["epoch"], "epochs": len(history),
        "seconds_per_epoch": sorted(row["seconds"] for row in history)[len(history) // 2], **model.parameter_counts(),
        "processes": trainer.world_size, "unseen_labels": data.unseen, "start_seed": module.config.seed,
        "config": json.loads(config.json()),
    }  # fmt: skip


@torch.no_grad()
def predict(model: MoleculeModel, split: Split, *, seed: int = 0) -> Tensor:
    """Predict the targets of all molecules of a split."""
    model.eval()
    batches = torch.arange(len(split)).split(EVALUATED)
    return torch.cat([model(split.take(which), draw_of(seed, EVALUATION, i)) for i, which in enumerate(batches)])
