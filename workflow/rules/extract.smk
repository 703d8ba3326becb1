rule layout:
    input:
        shard=f"{RESULTS}/plan/shards/{{shard}}.tsv",
        environment=ancient(f"{RESULTS}/environment.json"),
    output:
        f"{RESULTS}/shards/{{shard}}/layout.json",
    log:
        f"{RESULTS}/logs/layout/{{shard}}.log",
    retries: 1
    conda:
        "../envs/quarry.yaml"
    threads: 4
    resources:
        gpu=1,
    params:
        results=RUN.results.root,
        output=SETTINGS.layout_digest(),
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry layout --results {params.results:q} --shard {wildcards.shard}'
        " --threads {threads} > {log:q} 2>&1"


rule extract:
    input:
        regions,
        shard=f"{RESULTS}/plan/shards/{{shard}}.tsv",
        environment=ancient(f"{RESULTS}/environment.json"),
    output:
        f"{RESULTS}/shards/{{shard}}/receipt.json",
    log:
        f"{RESULTS}/logs/extract/{{shard}}.log",
    retries: 1
    conda:
        "../envs/quarry.yaml"
    # Readers of one job share a shard; at four, two jobs overlap on eight cores and hide each other's start and end.
    threads: 4
    resources:
        gpu=int(SETTINGS.on_gpu),
    params:
        results=RUN.results.root,
        output=SETTINGS.output_digest(),
        limits=SETTINGS.limits_digest(),
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry extract --results {params.results:q} --shard {wildcards.shard}'
        " --threads {threads} > {log:q} 2>&1"
