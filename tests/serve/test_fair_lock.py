"""The lock of a GPU is given to threads in the order in which they asked."""

import threading
import time

from qkv.serve.running.fair_lock import FairLock


def test_a_thread_that_takes_the_lock_in_a_loop_starves_nobody() -> None:
    lock, order, stopped = FairLock(), [], threading.Event()

    def take_in_a_loop() -> None:
        while not stopped.is_set():
            with lock:
                order.append("loop")
                time.sleep(0.001)

    looping = threading.Thread(target=take_in_a_loop)
    looping.start()
    waits = []
    for _ in range(20):
        before = len(order)
        with lock:
            waits.append(len(order) - before)
    stopped.set()
    looping.join()
    assert max(waits) <= 3


def test_only_one_thread_has_the_lock() -> None:
    lock, inside, most = FairLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
