"""The client library, which reads the results of a query: see `CorrectedStream`.

Touches Kafka. Imports boreal.model only, so that an application needs no other room of this project.
"""

from boreal.client.changes import Boundary, Change, Missing, MissingRows, RecDone, Stable, Tentative, Undo
from boreal.client.corrected_stream import CorrectedStream, Place
from boreal.client.result_frame import ResultFrame
from boreal.client.view import View

__all__ = [
    "Boundary",
    "Change",
    "CorrectedStream",
    "Missing",
    "MissingRows",
    "Place",
    "RecDone",
    "ResultFrame",
    "Stable",
    "Tentative",
    "Undo",
    "View",
]
