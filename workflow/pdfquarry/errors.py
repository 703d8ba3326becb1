"""Everything that ends a command early, and the exit code each kind ends with.

| code | class | meaning |
| --- | --- | --- |
| 0 | | done; failed documents are in the summary |
| 1 | | a bug in PDF Quarry: a traceback, please report it |
| 2 | ConfigurationError | a setting or a command line that can't be used |
| 3 | CorpusError | no corpus to work on |
| 4 | EnvironmentFault | the machine lacks something that the settings ask for |
| 5 | BusyError | another run holds this results folder |
| 6 | FailedDocuments | `strict: true` and at least one document failed |
| 7 | ResultsError | the results folder can't be written or has been damaged |
"""

from __future__ import annotations


class QuarryError(Exception):
    """Ends the command with ``code`` and its message, one line a problem, without a traceback."""

    code = 1


class ConfigurationError(QuarryError):
    """A setting or a command line that can't be used."""

    code = 2


class CorpusError(QuarryError):
    """No corpus to work on: a path that isn't there, or a folder without PDFs."""

    code = 3


class EnvironmentFault(QuarryError):
    """The machine lacks something that the settings ask for."""

    code = 4


class BusyError(QuarryError):
    """Another run holds this results folder."""

    code = 5


class FailedDocuments(QuarryError):
    """The settings are strict and at least one document failed."""

    code = 6


class ResultsError(QuarryError):
    """The results folder can't be written, or a file in it has been damaged."""

    code = 7
