checkpoint plan:
    input:
        listing=f"{RESULTS}/plan/listing.tsv",
    output:
        corpus=f"{RESULTS}/plan/corpus.tsv",
        index=f"{RESULTS}/plan/index.tsv",
    log:
        f"{RESULTS}/logs/plan.log",
    localrule: True
    threads: workflow.cores or 1
    params:
        results=RESULTS,
        python=sys.executable,
    shell:
        "exec {params.python} -m pdfquarry plan --results {params.results:q} --threads {threads} > {log:q} 2>&1"
