# Not part of `all`: for a person who wants to know where a card's time goes (docs/profile.md).
rule profile:
    input:
        environment=f"{RESULTS}/environment.json",
    output:
        f"{RESULTS}/profile/profile.json",
        f"{RESULTS}/profile/profile.md",
    log:
        f"{RESULTS}/logs/profile.log",
    localrule: True
    conda:
        "../envs/quarry.yaml"
    params:
        results=RUN.results.root,
        gpu=SETTINGS.environment.model_dump(),
    shell:
        'exec "$QUARRY_PYTHON" -m pdfquarry profile --results {params.results:q} > {log:q} 2>&1'
