"""python -m tests.mutants [PATH ...]: small changes of the code that no test notices.

Each change (a comparison flipped, a constant one larger, an operator exchanged, a `not` dropped, a result left out) is made
in a copy of the tree, and the tests that lie parallel to the changed module run on it until one fails. Those that all tests
pass are printed: a test is missing there, or the change makes no difference, which is worth a look too. Changes are drawn
by the seed, as many as the time allows.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "*.egg-info")
MEMORY = 8 << 30  # a change may ask for all there is
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of a module: where, what stood there, and what stands there now."""

    path: Path
    line: int
    before: str
    after: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"

    def source(self) -> str:
        """The module with the change."""
        tree = ast.parse((ROOT / self.path).read_text())
        parent, name, i = place = next(islice(places(tree), self.number, None))
        after = changed(at(place))
        if i is None:
            setattr(parent, name, after)
        else:
            getattr(parent, name)[i] = after
        return ast.unparse(ast.fix_missing_locations(tree))


def changed(node: ast.AST) -> ast.AST | None:
    """The node after its change, or None when there is none for it."""
    match node:
        case ast.Compare(ops=[only]):
            node.ops = [OTHER[type(only)]()]  # type: ignore[list-item]
        case ast.BoolOp() | ast.BinOp() if type(node.op) in OTHER:
            node.op = OTHER[type(node.op)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return node.operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            return ast.Constant(value + 1)
        case ast.Return(value=ast.expr()):
            return ast.Return(ast.Constant(None))
        case _:
            return None
    return node


def places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Every node by its parent, the field it stands in and its place there; types and decorators are left alone."""
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for i, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(each, ast.stmt | ast.expr):
                yield parent, name, i
            if isinstance(each, ast.AST):
                yield from places(each)


def at(place: tuple[ast.AST, str, int | None]) -> ast.AST:
    parent, name, i = place
    return getattr(parent, name) if i is None else getattr(parent, name)[i]


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a module."""
    for number, place in enumerate(places(ast.parse((ROOT / path).read_text()))):
        node = at(place)
        before = ast.unparse(node)
        after = changed(copy.copy(node))
        if after is not None and before != "__name__ == '__main__'":
            yield Mutant(path, getattr(node, "lineno", 0), before, ast.unparse(after), number)


def tests_of(path: Path) -> list[str]:
    """The tests parallel to a module: the file of its name, or those of its folder, or the one of its folder's name."""
    folder = ROOT / "tests" / path.parent
    named = folder / f"test_{path.stem}.py"
    beside = [named] if named.exists() else sorted(folder.glob("test_*.py")) or sorted(folder.rglob("test_*.py"))
    whole = folder.parent / f"test_{folder.name}.py"
    return [str(p.relative_to(ROOT)) for p in beside or ([whole] if whole.exists() else [])]


def modules(paths: list[Path]) -> list[Path]:
    found = [p for path in paths for p in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [p.resolve().relative_to(ROOT) for p in found]


def run(tree: Path, tests: list[str], seconds: float) -> bool:
    """Whether all tests pass on a copy of the tree; one that takes too long has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    variables = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # a stale one would hide a change
    process = subprocess.Popen(
        command, cwd=tree, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )  # fmt: skip
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
        process.wait()


@dataclass
class Trial:
    """Copies of the tree, one for each job, and how long the tests of a module take when nothing is changed."""

    trees: queue.SimpleQueue[Path]
    baseline: dict[tuple[str, ...], float]
    deadline: float

    def survives(self, mutant: Mutant) -> bool | None:
        """Whether no test notices; None when the time is over or the tests fail without a change."""
        if time.monotonic() > self.deadline:
            return None
        tests, tree = tests_of(mutant.path), self.trees.get()
        try:
            if tuple(tests) not in self.baseline:
                start = time.monotonic()
                passed = run(tree, tests, 3600)
                self.baseline[tuple(tests)] = time.monotonic() - start if passed else 0
                if not passed:
                    tqdm.write(f"{' '.join(tests)}: fails without a change")
            usual = self.baseline[tuple(tests)]
            (tree / mutant.path).write_text(mutant.source())
            return run(tree, tests, 3 * usual + 10) if usual else None
        finally:
            shutil.copy(ROOT / mutant.path, tree / mutant.path)
            self.trees.put(tree)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "exporter", ROOT / "service"])
    parser.add_argument("--seconds", type=float, default=600, help="no change is begun later than this")
    parser.add_argument("--seed", type=int, default=0, help="which changes are tried first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at once")
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found = [mutant for path in modules(options.paths) for mutant in mutants(path)]
    random.Random(options.seed).shuffle(found)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        trial = Trial(queue.SimpleQueue(), {}, time.monotonic() + options.seconds)
        for job in range(options.jobs):
            shutil.copytree(ROOT, Path(folder) / str(job), ignore=LEFT_OUT)
            trial.trees.put(Path(folder) / str(job))
        tried = survived = 0
        for mutant, survives in zip(tqdm(found, unit="change"), pool.map(trial.survives, found), strict=True):
            tried += survives is not None
            if survives:
                survived += 1
                tqdm.write(str(mutant))
    print(f"{len(found)} changes, {tried} tried, {tried - survived} noticed, {survived} not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
