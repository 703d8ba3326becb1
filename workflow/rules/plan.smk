checkpoint plan:
    input:
        listing=f"{RESULTS}/plan/listing.tsv",
    output:
        corpus=f"{RESULTS}/plan/corpus.tsv",
        index=f"{RESULTS}/plan/index.tsv",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    threads: workflow.cores or 1
    params:
        results=RUN.results.root,
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry plan --results {params.results:q} --threads {threads} > {log:q} 2>&1'
