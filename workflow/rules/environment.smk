rule environment:
    output:
        f"{RESULTS}/environment.json",
        f"{RESULTS}/environment.md",
    log:
        f"{RESULTS}/logs/environment.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    params:
        results=RUN.results.root,
        packages=RUN.versions,
        arch=SETTINGS.arch,
        gpu=SETTINGS.environment.model_dump(),
        engine=[SETTINGS.engine, SETTINGS.detected, SETTINGS.vlm.model],
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry environment --results {params.results:q} > {log:q} 2>&1'
