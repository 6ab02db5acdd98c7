"""Figures are complete lists of settings, run once each, on processes or on Ray."""

import json

import pytest

from ohmformer.apps.command_line.learn import reproduce
from ohmformer.experiments.learn import figures, sweep
from ohmformer.experiments.learn.findings import findings
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.sweep import Job, run_all


@pytest.mark.parametrize("preset", figures.PRESETS)
def test_every_panel_of_every_figure_is_there(preset):
    depths = figures.PRESETS[preset].depths
    found = {name: figures.jobs(name, preset) for name in figures.PANELS}
    assert len(found["fig1"]) == 3 * 2 * len(depths)
    assert len(found["fig2"]) == 2 * 2 * len(depths) * (4 if preset == "settled" else 1)
    assert len(found["fig3"]) == (3 * 2 + 1) * 2 * len(depths)
    assert {job.setting.model for job in found["fig1"]} == {"dense"}
    kinds = {(job.setting.model, job.setting.init) for job in found["fig2"]}
    both = {(model, init) for model in ("dense", "efficient") for init in ("random", "construction")}
    assert kinds == (both if preset == "settled" else {("dense", "random")})
    assert {job.setting.model for job in found["fig3"]} == {"efficient"}
    assert all(len({job.name for job in jobs}) == len(jobs) for jobs in found.values())


def test_the_standard_preset_takes_at_most_a_tenth_of_the_authors_samples():
    for job in figures.jobs("fig1", "standard"):
        samples = job.steps * job.setting.batch
        assert samples <= figures.AUTHORS_STEPS[job.setting.layers] * figures.AUTHORS_BATCH / 10


def test_unknown_figures_and_presets_are_refused():
    with pytest.raises(ValueError, match="expected a figure among"):
        figures.jobs("fig4", "quick")
    with pytest.raises(ValueError, match="expected a preset among"):
        figures.jobs("fig1", "slow")


SMALL = [Job(Setting("electric", model="dense", layers=layers, seeds=1, batch=5), 2) for layers in (1, 2)]


def test_finished_settings_are_never_computed_again(tmp_path, monkeypatch):
    first = run_all(SMALL, tmp_path, workers=1)
    monkeypatch.setattr(sweep, "_on_processes", lambda *_: pytest.fail("computed again"))
    assert run_all(SMALL, tmp_path) == first
    path = tmp_path / f"{SMALL[0].name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 3}))
    with pytest.raises(ValueError, match="got that of another setting"):
        run_all(SMALL, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_local_ray_cluster_of_two_workers_gives_the_same_numbers(tmp_path):
    pytest.importorskip("ray")
    here = run_all(SMALL, tmp_path / "here", workers=1)
    there = run_all(SMALL, tmp_path / "there", cluster="local", workers=2)
    for job in SMALL:
        assert here[job]["seeds"] == there[job]["seeds"]


def fake(job: Job, log: float) -> dict:
    each = [[0.001, 0.05] + [0.3 - 0.03 * i for i in range(8)]]
    names = ("1-5", "1-10") if job.setting.task == "eigenvectors" else ("demand", "frobenius")
    seeds = {f"log_{name}": [log] * job.setting.seeds for name in names}
    means = {f"mean_log_{name}": log for name in names}
    return {"seeds": seeds | {"each": each}, "seconds": 1.0, **means}


@pytest.mark.parametrize("figure", figures.PANELS)
def test_a_figure_is_drawn_with_its_table_and_says_where_it_rises(figure, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "lemma_losses", lambda task, graphs, depths: {})
    jobs = figures.jobs(figure, "quick")
    falling = {job: fake(job, -float(job.setting.layers)) for job in jobs}
    assert figures.rises(falling) == []
    paths = figures.write(figure, "quick", falling, tmp_path, "a note")
    assert [path.suffix for path in paths] == [".svg", ".png", ".md"]
    text = paths[-1].read_text()
    assert "falls at every step of depth" in text
    assert ("Findings of section 4.1" in text) == (figure == "fig2")
    rising = {job: fake(job, float(job.setting.layers)) for job in jobs}
    assert len(figures.rises(rising)) == len(jobs) * 2 // 3


def test_the_settled_figure_2_has_panels_rows_and_findings_for_both_models_and_starts(tmp_path):
    results = {job: fake(job, -float(job.setting.layers)) for job in figures.jobs("fig2", "settled")}
    assert len(figures.draw_figure("fig2", results).axes) == 4 * 6
    text = figures.table("fig2", results)
    for start in ("dense, random", "dense, construction", "efficient, random", "efficient, construction"):
        assert text.count(f"| {start} | log 1-10 |") == text.count(f"| {start} | loss 1-5 |") * 2 == 4
    assert len(findings(results)) == 4 * 4
    assert "| 0.368 | 0.050 | 0.007 | 0.001 | 0.000 |" in text  # exp(-1), exp(-3), ...


def test_findings_are_judged_by_the_losses():
    results = {job: fake(job, -1.0) for job in figures.jobs("fig2", "quick")}
    judged = {(found.graphs, found.claim.split(",")[0]): found for found in findings(results)}
    assert judged["csl", "trained on loss_1-10"].holds  # the fake losses fall from loss_3 on
    assert "loss_2 is the exception" in judged["csl", "trained on loss_1-10"].note
    assert not judged["fc", "trained on loss_1-5"].holds


def test_lemmas_get_better_with_depth():
    for task in ("electric", "resistive", "heat"):
        for statement, rows in figures.lemma_losses(task, "csl", (1, 9), 10).items():
            if statement != "Lemma 3":  # Taylor's terms grow until l = s lmax
                assert rows[1]["log_demand"] < rows[0]["log_demand"]


def test_an_interrupted_figure_is_drawn_as_far_as_it_is_trained(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    small = figures.Preset((1, 2), 1, 1, 1)
    monkeypatch.setitem(figures.PRESETS, "quick", small)

    def one_then_stop(jobs, folder, workers):
        yield jobs[-1], sweep.run_one(jobs[-1].setting.as_dict(), jobs[-1].steps, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_on_processes", one_then_stop)
    runs, out = tmp_path / "runs", tmp_path / "results"
    with pytest.raises(KeyboardInterrupt):
        reproduce(["fig2"], preset="quick", runs=runs, out=out)
    text = (out / "fig2-quick.md").read_text()
    assert f"1 of {len(figures.jobs('fig2', 'quick'))} settings so far" in text
    assert (out / "fig2-quick.svg").is_file()
    assert len(list(runs.glob("quick/*.json"))) == 1
