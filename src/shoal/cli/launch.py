"""``shoal launch``: a script on several processes, with torch imported once for all of them."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from pathlib import Path

from shoal import _forkserver
from shoal.errors import ShoalError, UsageError, WorkerInterruptedError

__all__ = ["main"]

_DESCRIPTION = """\
Run a script, or a module with -m, on several processes of this machine, or of several machines that run the same
command. Workers get the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...), and start from
one process that has imported torch already. They have no standard input."""


def main(argv: list[str]) -> int:
    """Parse, check, launch; the failing rank's report goes to standard error.

    The process ends with 0 when every worker ended well, 1 when one failed, 128 + the signal's number when a signal
    ended the job.

    Returns:
        2 for a command line that cannot work.
    """
    options = _parser().parse_args(argv)
    try:
        code = _launch(options)
    except UsageError as error:
        print(f"shoal launch: {error}", file=sys.stderr)
        return 2
    # All workers have ended and nothing is left to clean up; taking torch down would cost another half second.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _launch(options: argparse.Namespace) -> int:
    target = _check_target(options.target, is_module=options.module)
    # After everything was checked that needs no torch: two processes now import it at the same time.
    _forkserver.start()
    from shoal.launch import launch, resolve
    from shoal.launch.report import RankTraceback

    spec = resolve(
        nproc_per_node=_per_node(options),
        nnodes=options.nnodes,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        backend=options.backend,
        grace_s=options.grace_s,
    )
    try:
        launch(_Program(target, options.module, options.arguments, options.backend), spec=spec)
    except KeyboardInterrupt:
        return 130
    except WorkerInterruptedError as error:
        return 128 + error.signal_number
    except ShoalError as error:
        report = error.__cause__ if isinstance(error.__cause__, RankTraceback) else error
        print(report, file=sys.stderr)
        return 1
    return 0


class _Program:
    """The script or module, run in a worker as ``__main__``."""

    def __init__(self, target: str, is_module: bool, arguments: list[str], backend: str | None) -> None:
        self.target = target
        self.is_module = is_module
        self.arguments = arguments
        self.backend = backend

    def __call__(self) -> None:
        if self.backend is not None:
            os.environ["SHOAL_BACKEND"] = self.backend
        sys.argv = [self.target, *self.arguments]
        if self.is_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(self.target).resolve().parent)  # in place of the launcher's own folder
            runpy.run_path(str(Path(self.target).resolve()), run_name="__main__")


def _check_target(target: str, *, is_module: bool) -> str:
    if is_module:
        sys.path.insert(0, str(Path.cwd()))
        try:
            found = importlib.util.find_spec(target)
        except (ImportError, ValueError):
            found = None
        finally:
            sys.path.pop(0)
        if found is None:
            raise UsageError(f"no module {target!r} can be found from here; check its name, or install its package")
        return target
    path = Path(target)
    if not path.is_file():
        raise UsageError(f"there is no script {target!r} in {Path.cwd()}; a module is run with -m")
    return str(path)


def _per_node(options: argparse.Namespace) -> int | str | None:
    total = options.num_processes
    if options.nnodes < 1:
        raise UsageError(f"--nnodes {options.nnodes} was given; give a whole number from 1")
    if total is None:
        return options.nproc_per_node  # type: ignore[no-any-return]
    if options.nproc_per_node is not None:
        raise UsageError(
            f"--num-processes {total} (of all nodes) and --nproc-per-node {options.nproc_per_node} were both given; "
            "give one of them"
        )
    if total < 1 or total % options.nnodes:
        raise UsageError(
            f"--num-processes {total} over --nnodes {options.nnodes} leaves {total} / {options.nnodes} = "
            f"{total / options.nnodes:g} processes a node; give a multiple of {options.nnodes}, or --nproc-per-node on "
            "each node"
        )
    return total // options.nnodes  # type: ignore[no-any-return]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shoal launch",
        usage="shoal launch [options] script.py | -m module [arguments ...]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        *("--nproc", "--nproc-per-node", "--nproc_per_node"),
        dest="nproc_per_node",
        metavar="N",
        help="processes on this node: a number, 'gpu', 'cpu' or 'auto' (one a GPU, else one); default auto",
    )
    add("--num-processes", "--num_processes", type=int, metavar="N", help="processes of all nodes together")
    add("--nnodes", type=int, default=1, metavar="N", help="nodes; default 1")
    add(
        "--node-rank",
        "--node_rank",
        type=int,
        metavar="N",
        help="number of this node, from 0; needed with several nodes",
    )
    add("--master-addr", "--master_addr", metavar="HOST", help="address of node 0; needed with several nodes")
    add("--master-port", "--master_port", metavar="PORT", help="port on node 0; default: a free one, on one node")
    add("--backend", metavar="NAME", help="gloo, nccl, mpi; default: nccl where each process gets a GPU, else gloo")
    add("--grace-s", "--grace_s", type=float, default=30.0, metavar="S", help="seconds from a signal to the end")
    add("--standalone", action="store_true", help="accepted for torchrun's sake: one node is the default")
    add("-m", "--module", action="store_true", help="run a module, as python -m does")
    add("target", metavar="script.py | module", help="what to run")
    add("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser
