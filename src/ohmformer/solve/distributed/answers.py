"""Answers on disk: a file for every part and panel of demands, kept as they are finished, and one certificate for all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from ohmformer.graph import Spectrum
from ohmformer.graph.files import whole_file, write_text
from ohmformer.solve.answer import Answer, join
from ohmformer.solve.distributed.shard import Shard

CERTIFICATE = "certificate.json"
QUESTION = "question.json"

Tell = Callable[[str], None]
"""Callback on process 0, with the plan before any work and a message after every panel."""


class AnswerFiles:
    """The folder of an answer; if None, nothing is stored."""

    def __init__(self, shard: Shard, out: Path | str | None, question: Mapping[str, Any]) -> None:
        self._shard, self.out = shard, None if out is None else Path(out)
        self._asked = {"graph": shard.manifest.graph, "nodes": shard.manifest.nodes, "parts": shard.group.size, **question}
        shard.group.agree(self._check)  # on all processes, before any of them writes
        if self.out is not None:
            write_text(self.out / QUESTION, json.dumps(self._asked))

    def _check(self) -> None:
        if self.out is None:
            return
        note = self.out / QUESTION
        if note.is_file():
            if json.loads(note.read_text()) != json.loads(json.dumps(self._asked)):
                raise ValueError(f"expected {self.out} to be of the same graph and question, it is of others; remove it")
        elif self.out.is_dir() and any(self.out.iterdir()):
            raise ValueError(f"expected a new or empty folder for answers, {self.out} holds other files")

    def _part(self, panel: int | str, rank: int) -> Path:
        assert self.out is not None
        return self.out / (panel if isinstance(panel, str) else f"panel-{panel:05d}") / f"part-{rank:05d}.safetensors"

    def last(self) -> int | None:
        """Return the last panel that all processes have finished."""
        if self.out is None:
            return None
        name, group = self._part(0, self._shard.group.rank).name, self._shard.group
        own = {int(path.parent.name[6:]) for path in self.out.glob(f"panel-*/{name}")}
        common = sorted(set.intersection(*group.gather(own)), reverse=True)
        return next((panel for panel in common if self.finished(panel) is not None), None)

    def finished(self, panel: int | str) -> dict[str, Any] | None:
        """Return the certificate of a panel if all processes have finished it, else None."""
        if self.out is None:
            return None
        path, group = self._part(panel, self._shard.group.rank), self._shard.group
        told = path.with_name(CERTIFICATE)
        certificate = json.loads(told.read_text()) if told.is_file() else None
        found = group.gather((path.is_file(), certificate))
        return found[0][1] if all(there for there, _ in found) else None

    def save(self, panel: int | str, arrays: Mapping[str, Tensor], certificate: Mapping[str, Any]) -> None:
        """Write this process's arrays of a panel, and its certificate once all have done so."""
        if self.out is None:
            return
        with whole_file(self._part(panel, self._shard.group.rank)) as temporary:
            save_file({name: x.cpu().contiguous() for name, x in arrays.items()}, temporary)
        self._shard.group.gather(None)
        if self._shard.group.rank == 0:
            write_text(self._part(panel, 0).with_name(CERTIFICATE), json.dumps(dict(certificate)))

    def load(self, panel: int | str) -> dict[str, Tensor]:
        """Read this process's arrays of a finished panel."""
        found = load_file(self._part(panel, self._shard.group.rank))
        return {name: torch.as_tensor(x, device=self._shard.group.device) for name, x in found.items()}

    def remove(self, panel: int) -> None:
        """Remove this process's arrays of a panel that a later one contains."""
        if self.out is not None:
            self._part(panel, self._shard.group.rank).unlink(missing_ok=True)

    def close(self, answer: Answer) -> None:
        """Write the certificate of the whole answer."""
        if self.out is not None and self._shard.group.rank == 0:
            write_text(self.out / CERTIFICATE, json.dumps({**self._asked, **certificate_of(answer)}, indent=1))


def fingerprint(shard: Shard, x: Float[Tensor, "rows k"]) -> str:
    """Return the same checksum of numbers on the nodes on all processes, to tell questions apart."""
    own = hashlib.sha256(x.detach().cpu().contiguous().numpy().data).hexdigest()
    return hashlib.sha256("".join(shard.group.gather(own)).encode()).hexdigest()


@dataclass(frozen=True)
class Asked:
    """A question that all processes ask together, and where its answer goes."""

    shard: Shard
    question: Mapping[str, Any]
    """What tells it from others, besides the fields below."""
    tol: float
    panel: int | None
    """The number of columns that are answered together; None until it is planned."""
    out: Path | str | None
    tell: Tell | None

    def say(self, text: str) -> None:
        """Call ``tell`` with a text on process 0 only."""
        say(self.shard, self.tell, text)


def in_panels(asked: Asked, columns: int, answer: Callable[[slice], Answer]) -> Answer:
    """Answer ``columns`` columns panel by panel and join them; panels stored in ``out`` are not computed again."""
    assert asked.panel is not None
    shard, panel = asked.shard, asked.panel
    files = AnswerFiles(shard, asked.out, {**asked.question, "tol": asked.tol, "columns": columns, "panel": panel})
    answers: list[Answer] = []
    for i, first in enumerate(range(0, max(columns, 1), panel)):
        kept = files.finished(i)
        if kept is None:
            found = answer(slice(first, min(first + panel, columns)))
            files.save(i, {"nodes": shard.nodes, "value": found.value}, certificate_of(found))
        else:
            found = answer_of(files.load(i)["value"], kept)
        answers.append(found)
        more = ", kept from before" if kept else f", {found.layers} layers"
        asked.say(f"panel {i + 1} of {-(-columns // panel)}: residual {found.residual:.1e}{more}")
    whole = join(answers, torch.cat([x.value for x in answers], dim=1))
    files.close(whole)
    return whole


def say(shard: Shard, tell: Tell | None, text: str) -> None:
    """Call ``tell`` with a text on process 0 only."""
    if tell is not None and shard.group.rank == 0:
        tell(text)


def certificate_of(answer: Answer) -> dict[str, Any]:
    """Return the certificate of an answer in plain types, for JSON."""
    spectrum = None if answer.spectrum is None else [answer.spectrum.lmin, answer.spectrum.lmax]
    names = ("method", "layers", "residual", "bound", "error", "error_kind", "note")
    return {**{name: getattr(answer, name) for name in names}, "spectrum": spectrum}


def answer_of(value: Tensor, certificate: Mapping[str, Any]) -> Answer:
    """Build an answer from a value and a certificate made by :func:`certificate_of`."""
    names = [x.name for x in fields(Answer) if x.name in certificate and x.name != "spectrum"]
    spectrum = None if certificate["spectrum"] is None else Spectrum(*certificate["spectrum"])
    return Answer(value, **{name: certificate[name] for name in names}, spectrum=spectrum)


def read_answer(out: Path | str, name: str = "value") -> Float[np.ndarray, "nodes columns"]:
    """Read a finished answer: the values of all nodes, panels and parts in one array."""
    folder = Path(out)
    if not (folder / CERTIFICATE).is_file():
        raise ValueError(f"expected a finished answer in {folder}, it has no {CERTIFICATE}")
    nodes, panels = json.loads((folder / CERTIFICATE).read_text())["nodes"], []
    for panel in sorted(folder.glob("panel-*")):
        parts = [load_file(path) for path in sorted(panel.glob("part-*.safetensors"))]
        whole = np.full((nodes, parts[0][name].shape[1]), np.nan, dtype=parts[0][name].dtype)
        for part in parts:
            whole[part["nodes"]] = part[name]
        panels.append(whole)
    return np.concatenate(panels, axis=1)
