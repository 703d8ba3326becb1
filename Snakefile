include: "workflow/Snakefile"


# An included file's default target is dropped, and Snakemake would do nothing without a word.
workflow.default_target = "all"
