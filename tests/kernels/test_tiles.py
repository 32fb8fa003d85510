"""Tile tables: the file, which one is in force, the features, the fit, a tiny tuning."""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.report import RESULTS
from benchmarks.transfer import replay
from pitc import api
from pitc.cli.tiles import duration
from pitc.errors import ArtifactError, UsageError
from pitc.host.machine import LEVEL_FLAGS, cpu_level
from pitc.ir.tiles import FACTORS, TileTable, VariantCost
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.options import TABLE_LEVELS, TableLevel
from pitc.tiles import tune as tuning
from pitc.tiles.file import Point, TilesFile, point_of, read_file
from pitc.tiles.find import SHIPPED, overlay_path, shipped, tables_in_force
from pitc.tiles.fit import fit_costs
from pitc.tiles.measure import Contractions, contractions, numbers_of
from pitc.tiles.patterns import PATTERNS, operand
from pitc.tiles.tune import FULL, QUICK, Grid, spread_sizes, tune
from tests.tile_prices import amounts as found
from tests.tile_prices import predicted_us, work

Run = Callable[..., tuple[int, str, str]]
TABLES = sorted(SHIPPED.glob("*.json"))
LEVELS_OF = {"epyc": {"v4"}, "xeon": {"v4", "v4_amx"}, "zen3": {"v3"}}
OF_LEVELS = [(path, level) for path in TABLES for level in read_file(path).levels]
HERE = TABLE_LEVELS.get(cpu_level() or "", "v4")
TINY = Grid(sizes=((130, 190),), cases=4, most=1 << 20, rounds=1)
needs_kernels = pytest.mark.skipif(cpu_level() is None, reason="no kernels for this CPU")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a current folder without settings."""
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PITC_TILES", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def store(path: Path, **changes: Any) -> Path:
    """The shipped table with other values of some fields of every level."""
    body = json.loads(shipped().text())
    for each in body["levels"].values():
        for key, value in changes.items():
            each[key] = {**each[key], **value} if isinstance(value, dict) else value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return path


def file_of_shipped(folder: Path) -> Path:
    """The shipped tables for this machine, which may be of several files, as one."""
    path = folder / "shipped.json"
    path.write_text(shipped().text())
    return path


def own(**changes: Any) -> Path:
    """A table that was measured here."""
    here = find_machine()
    return store(overlay_path(), date="2001-02-03", machine=here | changes)


def find_machine() -> dict[str, Any]:
    from pitc.tiles.find import this_machine

    return this_machine().model_dump()


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_shipped_tables(path: Path) -> None:
    found = read_file(path)
    assert set(found.levels) == LEVELS_OF[path.stem]
    for measured in found.levels.values():
        assert set(measured.costs) == set(VARIANTS)
    table = found.table()
    floats = set(found.levels) - {"v4_amx"}
    assert len(table.table("float32")) == 2 * len(floats) * len(VARIANTS)
    for name, numbers in table.table("float32"):
        assert isinstance(numbers, tuple)
        assert len(numbers) == (FACTORS if name.startswith("shape_") else len(FEATURES))
    assert len(table.table("bfloat16")) == 2 * len(found.levels) * len(VARIANTS)
    cost = {"dense": VariantCost((1,) * len(FEATURES))}
    plain = TileTable({"v4_amx": cost, "v4": cost})
    assert {name for name, _ in plain.table("float32")} == {"cost_dense_v4"}
    assert [name for name, _ in plain.table("bfloat16")] == ["cost_dense_v4_amx", "cost_dense_v4"]
    with pytest.raises(ValueError, match="no prices of float16"):
        plain.table("float16")


@pytest.mark.parametrize(("path", "level"), OF_LEVELS, ids=lambda x: getattr(x, "stem", x))
def test_shipped_prices_follow_from_the_measured_points(path: Path, level: TableLevel) -> None:
    measured, table = read_file(path).levels[level], read_file(path).table().costs[level]
    points = measured_points(path.stem, level)
    fits = fit_costs(points)
    assert not measured.points and measured.point_count == len(points) > 100
    for point in points[::100]:
        for variant, fit in fits.items():
            told = predicted_us(table[variant], variant, point.counted())
            assert told == pytest.approx(predicted_us(fit.cost, variant, point.counted()), rel=0.01)


def measured_points(machine: str, level: TableLevel) -> list[Point]:
    return read_file(RESULTS / "tiles" / f"{machine}-{level}.json").levels[level].points


def regret(table: Mapping[str, VariantCost], points: Sequence[Point]) -> float:
    """Time of what a table chooses over that of the best variants."""
    taken = best = 0.0
    for point in points:
        work = point.counted()
        taken += point.us[min(point.us, key=lambda v: predicted_us(table[v], v, work))]
        best += min(point.us.values())
    return taken / best


@pytest.mark.parametrize("level", ["v4_amx", "v4", "v3"])
def test_shipped_prices_choose_well_where_they_were_measured_and_fairly_elsewhere(
    level: TableLevel,
) -> None:
    """Measured times of one machine, replayed under the prices of each.

    Features are those of vector units, so they tell a matrix unit's times less well.
    """
    well = 1.04 if level == "v4_amx" else 1.02
    tables = [path for path, name in OF_LEVELS if name == level]
    for path in tables:
        table = read_file(path).table().costs[level]
        for other in tables:
            points = measured_points(other.stem, level)
            lost = regret(table, points[:: 1 + len(points) // 500])
            assert lost < (well if other == path else 1.08), (path, other, lost)


@pytest.mark.parametrize("level", ["v4", "v3"])
def test_a_replay_tells_the_regret_of_a_table(level: TableLevel) -> None:
    """With prices as they are; constants of each variant that fit its own points lose nothing."""
    path = next(path for path, name in OF_LEVELS if name == level)
    points, table = measured_points("xeon", level)[:60], read_file(path).table().costs[level]
    found, as_they_are = replay(points, dict(table)), np.ones((len(VARIANTS), len(FEATURES)))
    assert found.regret(as_they_are) == pytest.approx(regret(table, points))
    fitted = found.fitted(True, np.arange(len(points)))
    assert found.regret(fitted) < found.regret(as_they_are)


@pytest.mark.parametrize(
    ("name", "table"), [("AMD Ryzen", "epyc"), ("Intel(R) Core", "xeon"), ("Other", "epyc")]
)
def test_the_shipped_table_of_a_like_machine_counts(
    name: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitc.tiles.find.cpu_name", lambda: name)
    wanted = read_file(SHIPPED / f"{table}.json").levels
    found = shipped().levels
    assert {level: found[level] for level in wanted} == wanted
    assert found["v4_amx"] == read_file(SHIPPED / "xeon.json").levels["v4_amx"]
    zen3 = read_file(SHIPPED / "zen3.json").levels["v3"]  # whoever runs this level has no AVX-512
    assert found["v3"] == zen3 and set(zen3.machine.features) == LEVEL_FLAGS["v3"]


def test_a_file_round_trips(tmp_path: Path) -> None:
    point = point_of(64, "1x1", 0.5, work(rows=3), {"dense": 1.25})
    first = shipped().levels["v4"].model_copy(update={"points": [point, point]})
    whole = TilesFile(levels={"v4": first})
    path = tmp_path / "tiles.json"
    path.write_text(whole.text())
    assert read_file(path) == whole
    rows = [line.strip() for line in path.read_text().splitlines()]
    assert sum(line.startswith('[64,"1x1",0.5,3,') for line in rows) == 2  # one line each


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is no tile table: not JSON"),
        (b"\xff\xfe", "is no tile table: not JSON"),
        (b"[" * 100_000, "is no tile table: not JSON"),
        (b"[]", "is no tile table"),
        (b'{"kind": "other"}', "is no tile table"),
        (b'{"kind": "pitc tile table", "schema_version": 2}', "its schema is 2, expected 1"),
        (b'{"kind": "pitc tile table"}', "its schema is None, expected 1"),
        (b'{"kind": "pitc tile table", "schema_version": 1}', "is damaged: levels: Field required"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(ArtifactError) as caught:
        read_file(path)
    assert str(path) in str(caught.value) and message in str(caught.value)
    assert "\n" not in str(caught.value)


def _dense(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["levels"]["v4"]["costs"]["dense"]
    return found


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body["levels"]["v4"]["costs"].pop("dense"),
        lambda body: body["levels"]["v4"]["costs"].update(row9=_dense(body)),
        lambda body: _dense(body)["prices"].pop(),
        lambda body: _dense(body)["prices"].__setitem__(0, -1),
        lambda body: _dense(body)["prices"].__setitem__(3, 1 << 51),
        lambda body: _dense(body)["prices"].__setitem__(3, "1"),
        lambda body: _dense(body)["factors"].pop(),
        lambda body: _dense(body)["factors"].__setitem__(0, 0),
        lambda body: _dense(body)["factors"].__setitem__(3, 10_001),
        lambda body: body["levels"].update(v5=body["levels"]["v4"]),
        lambda body: body["features"].reverse(),
        lambda body: body.update(more=1),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads(shipped().text())
    damage(body)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(body))
    with pytest.raises(ArtifactError, match="is damaged: "):
        read_file(path)


def test_prices_are_checked() -> None:
    good = (0,) * len(FEATURES)
    for bad in ((-1, *good[1:]), good[1:], (1 << 51, *good[1:])):
        with pytest.raises(ValueError, match="prices"):
            VariantCost(bad)
    for bad in ((1,) * (FACTORS - 1), (0,) * FACTORS, (10_001,) * FACTORS):
        with pytest.raises(ValueError, match="factors"):
            VariantCost(good, bad)
    with pytest.raises(ValueError, match="no price for the dense"):
        TileTable({"v4": {"row": VariantCost(good)}})


# --- which one is in force -----------------------------------------------------------------------


def test_without_an_own_table_the_shipped_one_counts() -> None:
    found = tables_in_force()
    assert found.origins == dict.fromkeys(TABLE_LEVELS, "shipped") and found.notes == ()
    assert found.table == shipped().table()


def test_the_own_table_counts_here_only() -> None:
    path = own()
    found = tables_in_force()
    assert set(found.origins.values()) == {str(path)} and found.notes == ()
    assert found.levels["v4"].date == "2001-02-03"
    other = {"device": "another CPU", "features": ["avx"], "caches": {"L2": "1K"}}
    for name, value in other.items():
        own(**{name: value})
        found = tables_in_force()
        assert set(found.origins.values()) == {"shipped"}
        assert f"measured on other {name}" in found.notes[0]
        assert len(found.notes) == len(TABLE_LEVELS)
        # a file that is named counts wherever it was measured
        assert set(tables_in_force(path).origins.values()) == {str(path)}


def test_levels_that_a_table_lacks_come_from_the_shipped_one() -> None:
    path = own()
    body = json.loads(path.read_text())
    del body["levels"]["v4"]
    path.write_text(json.dumps(body))
    assert tables_in_force().origins == dict.fromkeys(("v4_amx", "v3"), str(path)) | {
        "v4": "shipped"
    }


def test_a_damaged_own_table_is_not_used() -> None:
    own().write_text("{")
    found = tables_in_force()
    assert set(found.origins.values()) == {"shipped"}
    assert len(found.notes) == 1 and "not JSON" in found.notes[0]
    with pytest.raises(ArtifactError):
        tables_in_force(overlay_path())


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"nothing\.json"):
        tables_in_force(Path("nothing.json"))


def test_doctor_names_the_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[dict[str, str]]:
        body = json.loads(run("doctor", "--json")[1])
        return [f for f in body["findings"] if f["name"] == "tile table"]

    assert [f["status"] for f in told()] == ["ok"] and "shipped" in told()[0]["detail"]
    path = own()
    assert [f["status"] for f in told()] == ["ok"] and str(path) in told()[0]["detail"]
    own(device="another CPU")
    assert [f["status"] for f in told()] == ["warn"] * len(TABLE_LEVELS) + ["ok"]
    store(path, date="2001-02-03", machine=find_machine(), versions={"pitc": "0.0.1"})
    assert [f["status"] for f in told()] == ["warn"]
    assert "measured with pitc 0.0.1, now" in told()[0]["detail"]
    monkeypatch.setenv("PITC_TILES", "nothing.json")
    assert [f["status"] for f in told()] == ["fail"]


# --- measuring -----------------------------------------------------------------------------------


def test_sizes_of_a_tuning_are_spread() -> None:
    sizes = np.log(spread_sizes(56))
    assert sizes.min() >= np.log(200) and sizes.max() <= np.log(8192)
    assert np.diff(np.sort(sizes, axis=0), axis=0).max() < 0.3  # on either axis
    for quarter in np.ndindex(2, 2):
        inside = (sizes > np.log(1280)) == quarter
        assert 11 <= inside.all(axis=1).sum() <= 17


def test_matrices_of_words_have_whole_words() -> None:
    """A point tells words: a case of an odd size would be measured anew after each stop."""
    assert numbers_of("v4_amx") == 2 and numbers_of("v4") == numbers_of("v3") == 1
    odd = Grid(sizes=((131, 190), (130, 191)), cases=2, most=1 << 20, rounds=1)
    assert [(c.k, c.n) for c in odd.plan(2)] == [(132, 190)] * 2 + [(130, 191)] * 2
    assert [c.k for c in odd.plan()] == [131, 131, 130, 130]


def test_operands_of_a_tuning_are_spread() -> None:
    for grid in (FULL, QUICK):
        plan = grid.plan()
        assert plan == grid.plan() and len(plan) > 0.97 * len(grid.sizes) * grid.cases
        assert [size for size, _ in groupby((c.k, c.n) for c in plan)] == list(grid.sizes)
        assert all(c.rows * c.k * c.n <= max(grid.most, c.k * c.n) for c in plan)
        assert {c.pattern for c in plan} == set(PATTERNS)
        assert all(0.005 <= c.density <= 1 and 1 <= c.rows <= 3000 for c in plan)
        rows, densities = (
            np.array([getattr(c, name) for c in plan]) for name in ("rows", "density")
        )
        assert 0.03 < np.mean(densities == 1) < 0.07 < 0.15 < np.mean(densities < 0.015) < 0.3
        assert np.mean(rows < 3) > 0.1 and np.mean(rows > 100) > 0.15


@pytest.fixture(scope="module")
def products() -> Iterator[Contractions]:
    with contractions(130, 190, HERE) as made:
        yield made


@needs_kernels
def test_features_are_those_of_the_runtime(products: Contractions) -> None:
    rng = np.random.default_rng(0)
    for rows, pattern, density in ((1, "1x1", 0.1), (7, "relu", 0.5), (70, "1x16", 0.3)):
        a = operand(rng, (rows, 130), pattern, density)
        for forced in ("dense", "row", "block32"):
            decision, _ = products.run(a, forced)
            assert decision.chosen == forced and decision.measured_us > 0
            assert set(decision.features) == set(VARIANTS)
            for variant, amounts in decision.features.items():
                want = found(variant, decision.work)
                assert amounts == pytest.approx(want, rel=1e-9, abs=1e-3), variant
    assert decision.work.counts["elements"] == np.count_nonzero(a)
    columns = np.asarray(a.any(axis=0))
    assert decision.work.counts["columns"] == np.count_nonzero(columns)
    for width in (1, 16, 32, 64):
        live = np.array([columns[c : c + width].any() for c in range(0, 130, width)])
        name = str(width) if width > 1 else ""
        assert decision.work.counts[f"columns{name}"] == live.sum()
        begins = live & ~np.r_[False, live[:-1]]
        assert decision.work.counts[f"runs{name}"] == begins.sum()


@needs_kernels
def test_predictions_are_those_of_the_runtime() -> None:
    table = tables_in_force().table
    with contractions(64, 300, HERE, table) as made:
        for rows in (2, 40):
            a = operand(np.random.default_rng(0), (rows, 64), "1x1", 0.3)
            decision, _ = made.run(a, "row")
            for variant, told in decision.predicted_us.items():
                want = predicted_us(table.costs[HERE][variant], variant, decision.work)
                assert told == pytest.approx(want, rel=1e-6, abs=1e-3)


@needs_kernels
def test_a_tuning_that_is_stopped_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "own" / "tiles.json"
    seen: list[str] = []

    def stop(done: int, total: int, text: str) -> None:
        seen.append(text)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(path, HERE, TINY, progress=stop)
    assert not path.exists()
    (points,) = path.parent.iterdir()
    lines = points.read_text().splitlines()
    assert len(lines) == 3
    points.write_text("\n".join([*lines, lines[-1][:40]]))  # killed while it wrote
    found = tune(path, HERE, TINY)
    assert (found.points, found.resumed) == (2, 2)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    measured = read_file(path).levels[HERE]
    assert len(measured.points) == 4 and set(measured.costs) == set(VARIANTS)
    assert measured.machine.model_dump() == find_machine()
    # points of other versions are not used
    points.write_text("\n".join(["{}", *lines[1:]]))
    assert tune(path, HERE, TINY).resumed == 0
    points.write_text("\n".join(lines))
    assert tune(path, HERE, TINY, restart=True).resumed == 0


@needs_kernels
def test_tune_keeps_other_levels(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "QUICK", TINY)
    path = store(tmp_path / "t.json", date="2001-02-03")
    code, out, err = run("tune", "--quick", "--tiles", path, "--level", HERE)
    assert code == 0, err
    assert "4 points" in out and "block32" in out and "[0/4]" in err
    other: TableLevel = "v3" if HERE == "v4" else "v4"
    found = read_file(path)
    assert found.levels[other].date == "2001-02-03" and found.levels[HERE].date != "2001-02-03"
    code, out, _ = run("tune", "--quick", "--quiet", "--json")
    assert code == 0 and json.loads(out)["path"] == str(overlay_path())
    assert set(json.loads(out)["fits"]) == set(VARIANTS)
    assert tables_in_force().origins[HERE] == str(overlay_path())


def test_tune_refuses(run: Run, tmp_path: Path) -> None:
    code, _, err = run("tune", "--level", "v9")
    assert (code, err) == (2, "error: level 'v9' is not one of v4_amx, v4, v3\n")
    other = tmp_path / "other.json"
    other.write_text("{}")
    code, _, err = run("tune", "--tiles", other)
    assert code == 5 and "is no tile table" in err and other.read_text() == "{}"
    code, _, err = run("tune", "--tiles", tmp_path / "other.json" / "t.json")
    assert code == 2 and len(err.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    code, _, err = run("tune", "--tiles", folder / "t.json")
    assert code == 2 and len(err.splitlines()) == 1


# --- shown and used ------------------------------------------------------------------------------


def test_inspect_tiles(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run("inspect", "--tiles")
    assert code == 0 and "v4  shipped" in out and "8 x 1" in out
    path = own()
    body = json.loads(run("inspect", "--tiles", "--json")[1])
    assert body["levels"]["v3"]["origin"] == str(path) and body["features"] == list(FEATURES)
    own(device="another CPU")
    assert "was measured on other device: another CPU" in run("inspect", "--tiles")[1]
    assert run("inspect", "--tiles", "model.pitc")[0] == 2
    assert run("inspect")[0] == 2
    path.write_text("{}")
    assert run("inspect", "--tiles")[0] == 0
    monkeypatch.setenv("PITC_TILES", str(path))
    code, _, err = run("inspect", "--tiles")
    assert code == 5 and len(err.splitlines()) == 1


def test_the_prices_in_a_plan(tmp_path: Path, run: Run) -> None:
    """`--tiles FILE` is what the compiled model holds."""
    import onnx

    from pitc.tiles.measure import product_model

    model, out = tmp_path / "m.onnx", tmp_path / "m.pitc"
    onnx.save(product_model(130, 190), model)
    path = own()
    body = json.loads(path.read_text())
    body["levels"]["v4"]["costs"]["row"]["prices"][0] = 424_242
    path.write_text(json.dumps(body))
    for words in ((), ("--tiles", file_of_shipped(tmp_path))):
        assert run("compile", model, "-o", out, "--force", "--quiet", *words)[0] == 0
        plans = [
            a.s.decode()
            for node in onnx.load(out / "model.onnx", load_external_data=False).graph.node
            for a in node.attribute
            if a.name == "ep_cache_context"
        ]
        assert plans and all(("424242" in p) == (not words) for p in plans)
    code, _, err = run("compile", model, "-o", out, "--force", "--tiles", "nothing.json")
    assert code == 2 and "nothing.json" in err


def test_api_takes_a_table_or_a_file(tmp_path: Path) -> None:
    table = shipped().table()
    assert api.prices_of("cpu", table) is table
    assert api.prices_of("cpu") == table == api.prices_of("cpu", str(file_of_shipped(tmp_path)))


def test_prices_for_people() -> None:
    pairs = {0: "-", 7: "7.0 fs", 1500: "1.5 ps", 99_600: "100 ps", 5_720_000: "5.7 ns"}
    pairs |= {4_314_163_653: "4.3 us", 10**12: "1000 us"}
    assert {price: duration(price) for price in pairs} == pairs
