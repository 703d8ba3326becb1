"""Device time of a call, by replaying it as a graph with cold caches."""

import time
from collections.abc import Callable
from statistics import median

import torch

# More than any cache in use: the H200's L2 has 50 MB, the RX 7900 XTX's Infinity Cache 96 MB.
FLUSH_BYTES = 256 << 20
SLOW_US = 50_000


def capture(call: Callable[[], object], warmups: int = 3) -> torch.cuda.CUDAGraph:
    """Warm a call up (compilation, library search) and record it as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmups):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def device_us(call: Callable[[], object], repeats: int = 20) -> float:
    """Median microseconds of GPU time of one call, launch gaps between its kernels included.

    A graph replay leaves the host's launch overhead out. The L2 is emptied before each replay.
    Calls of more than 5 ms are repeated fewer times, five at least.
    """
    graph = capture(call)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def replay() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    first = max(replay() for _ in range(2))
    return median(replay() for _ in range(max(5, min(repeats, int(1e5 / first)))))


def once_us(call: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one call from its start to its end on the device, the host's part included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1e6


def any_us(call: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one call, whatever it is and wherever: ``device_us`` where that can be asked for.

    A call of more than 50 ms is taken once, since a fallback may take seconds; one that can't be captured as a graph
    (a library that allocates in between), and everything on the CPU, is the median of five by the clock.
    """
    call()
    first = once_us(call, device)
    if first > SLOW_US:
        return first
    if device.type == "cuda":
        try:
            return device_us(call, repeats=10)
        except RuntimeError:
            torch.cuda.synchronize(device)
    return median(once_us(call, device) for _ in range(5))
