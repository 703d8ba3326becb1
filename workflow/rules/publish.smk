rule publish:
    input:
        corpus=f"{RESULTS}/plan/corpus.tsv",
        receipts=receipts,
    output:
        f"{RESULTS}/documents.parquet",
        # In the tree, so that a tree that was deleted is published again.
        touch(f"{RESULTS}/markdown/.published"),
    log:
        f"{RESULTS}/logs/publish.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    params:
        results=RUN.results.root,
        formats=sorted(SETTINGS.formats),
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry publish --results {params.results:q} > {log:q} 2>&1'
