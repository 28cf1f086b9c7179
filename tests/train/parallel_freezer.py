"""A process that talks to another for ever: `python parallel_freezer.py` in torchrun's environment, for the tests."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from qkv.train.parallel.heartbeat import Heartbeat


def main() -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False)
    Heartbeat(store, rank, size, every=0.1, limit=3.0, grace=0.1).start()
    dist.barrier()
    number = torch.ones(())
    for turn in range(10**9):
        dist.all_reduce(number)
        number.fill_(1.0)
        if turn == 100:
            sys.stdout.write("going\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
