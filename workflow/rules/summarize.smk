rule summarize:
    input:
        documents=f"{RESULTS}/documents.parquet",
        index=f"{RESULTS}/plan/index.tsv",
        receipts=receipts,
    output:
        report(
            f"{RESULTS}/summary/summary.md",
            caption="../report/summary.rst",
            category="Summary",
        ),
        report(
            f"{RESULTS}/summary/documents.tsv",
            caption="../report/documents.rst",
            category="Tables",
        ),
        report(
            f"{RESULTS}/summary/throughput.tsv",
            caption="../report/throughput.rst",
            category="Tables",
        ),
    log:
        f"{RESULTS}/logs/summarize.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    params:
        results=RUN.results.root,
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry summarize --results {params.results:q} > {log:q} 2>&1'


rule strict:
    input:
        f"{RESULTS}/summary/documents.tsv",
    output:
        touch(f"{RESULTS}/summary/strict.ok"),
    log:
        f"{RESULTS}/logs/strict.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    params:
        results=RUN.results.root,
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry check --results {params.results:q} 2> >(tee {log:q} >&2)'
