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
    params:
        results=RESULTS,
        python=sys.executable,
        formats=sorted(SETTINGS.formats),
    shell:
        "exec {params.python} -m pdfquarry publish --results {params.results:q} > {log:q} 2>&1"
