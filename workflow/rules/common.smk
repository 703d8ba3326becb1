# What the rules share: the settings, the listing of the corpus, the live shards.
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

PACKAGE = str(Path(workflow.current_basedir).parent)

# The package beside the rules runs, also when another version is installed.
sys.path.insert(0, PACKAGE)

from pdfquarry import run as quarry
from pdfquarry.errors import QuarryError

try:
    RUN = quarry.open_run(
        config,
        PACKAGE,
        main=workflow.is_main_process,
        deployed=bool(workflow.deployment_settings.deployment_method),
    )
except QuarryError as error:
    raise WorkflowError(f"exit code {error.code}\n{error}") from None

SETTINGS = RUN.settings
RESULTS = str(RUN.results.root)

# Snakemake ignores a resource without a limit. Jobs never share a card whatever this says, since each leases one; it
# keeps those that would wait from taking cores. On a cluster (which counts nodes) the scheduler has the cards.
if RUN.gpus and workflow.resource_settings.nodes is None:
    if "gpu" not in workflow.global_resources:
        workflow.register_resource("gpu", RUN.gpus)


wildcard_constraints:
    shard=r"s\d{5}-[0-9a-f]{8}",


def receipts(wildcards):
    """The receipts of the live shards, known once the corpus is planned."""
    index = checkpoints.plan.get().output.index
    return expand(
        f"{RESULTS}/shards/{{shard}}/receipt.json", shard=quarry.live_shards(index)
    )


def regions(wildcards):
    """The receipt of a shard's layout, where a detector finds the regions."""
    detector = SETTINGS.detected == "doclayout-yolo"
    return [f"{RESULTS}/shards/{wildcards.shard}/layout.json"] * detector


def final_outputs():
    """What a run is for; with `strict` also that no document failed.

    All that may be deleted by hand is named: Snakemake makes a missing file again only when it is asked for, or when
    what is made from it is out of date.
    """
    summaries = [
        f"{RESULTS}/summary/{name}"
        for name in ("summary.md", "documents.tsv", "throughput.tsv")
    ]
    plan = [f"{RESULTS}/plan/corpus.tsv", f"{RESULTS}/plan/index.tsv"]
    published = [f"{RESULTS}/documents.parquet", f"{RESULTS}/markdown/.published"]
    return (
        plan
        + published
        + summaries
        + [f"{RESULTS}/summary/strict.ok"] * SETTINGS.strict
    )


def start_run():
    try:
        for line in RUN.start():
            print(line, file=sys.stderr)
    except QuarryError as error:
        raise WorkflowError(f"exit code {error.code}\n{error}") from None


def end_run(success):
    for line in RUN.end(success):
        print(line, file=sys.stderr)
