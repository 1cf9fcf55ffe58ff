"""A script that starts its own processes with Shoal's Parallel."""

import sys

import shoal.distributed as idist


def add_up(_local_rank: int) -> None:
    total = idist.all_reduce(1)
    if idist.get_rank() == 0:
        print(f"world size {int(total)}", flush=True)


if __name__ == "__main__":
    with idist.Parallel(backend="gloo", nproc_per_node=int(sys.argv[1])) as parallel:
        parallel.run(add_up)
