"""What runs in an engine process, in the Python for work on GPUs: the model, and a socket that pages come in by.

These modules import nothing else of pdfquarry, whose own dependencies need not be there.
"""
