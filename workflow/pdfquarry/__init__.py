"""PDF Quarry: a Snakemake workflow that turns PDF corpora into Markdown.

One module a noun; the rules in ``workflow/rules`` call ``python -m pdfquarry <step>`` and hold no logic.
"""

__version__ = "0.1.0"

# Raised by hand when the same PDF and the same settings would come out differently: every document is then
# extracted again. Nothing else in our code triggers that, so a refactoring redoes no work.
OUTPUT_VERSION = 2
