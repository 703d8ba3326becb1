rule environment:
    output:
        f"{RESULTS}/environment.json",
    log:
        f"{RESULTS}/logs/environment.log",
    localrule: True
    params:
        results=RESULTS,
        python=sys.executable,
        packages=RUN.versions,
        arch=SETTINGS.arch,
    shell:
        "exec {params.python} -m pdfquarry environment --results {params.results:q} > {log:q} 2>&1"
