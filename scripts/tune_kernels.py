"""Find the fastest kernel configurations for this card and write them where they are looked up.

    python scripts/tune_kernels.py                      # tune for the card at hand
    python scripts/tune_kernels.py --model gfx1100      # no card: choose by compiler and model

A run takes some ten minutes. It may be stopped at any time: what is measured is kept beside the
output, and the next run goes on from there.
"""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import triton

from pdfquarry_kernels import configs, tuning
from pdfquarry_kernels.search import cases


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="directory (default: the user's cache)")
    parser.add_argument("--model", metavar="ARCH", help="choose by compiler and model, no card")
    parser.add_argument("--limit", type=int, default=60, help="configurations to time a case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time")
    options = parser.parse_args(arguments)
    document: dict[str, Any] = {"schema": configs.SCHEMA, "triton": triton.__version__}
    if options.model:
        arch = options.model
        document |= {"arch": arch, "evidence": "compiler model"}
    else:
        import torch

        from pdfquarry_kernels.dispatch import arch_of

        if not torch.cuda.is_available():
            raise SystemExit("no GPU: name an architecture with --model to choose without one")
        device = torch.device("cuda", torch.cuda.current_device())
        arch = arch_of(device)
        document |= {"arch": arch, "evidence": "measured", "torch": torch.__version__}
        document |= {"device": torch.cuda.get_device_name(device), "rocm": torch.version.hip}
    path = (options.output or configs.user_directory()) / f"{arch}.json"
    journal = tuning.Journal(path.with_suffix(".journal"), document)
    entries = []
    everything = list(cases())
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, case in enumerate(everything, 1):
            tuning.say(f"[{number}/{len(everything)}] {case.op} {case.dtype} {case.shape}")
            if options.model:
                entries.append(tuning.model_case(case, pool, arch))
            else:
                sound = [config for config, _ in tuning.survivors(pool, case, arch, options.limit)]
                entries.append(tuning.tune_case(case, sound, tuning.default_of(case, arch), journal))
    document |= {"date": datetime.now(UTC).date().isoformat()}
    tuning.write_atomically(path, document | {"entries": list(tuning.with_catch_all(entries))})
    journal.path.unlink(missing_ok=True)
    tuning.say(f"written: {path}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(str(error)) from None
