"""Saves: a run, written so that it goes on exactly, or elsewhere under another layout.

pipeline.save(folder_of("out", 10))      all ranks; `wait=False` while training goes on
pipeline.load(newest("out"))             of the same model, by any program on any devices
export(newest("out"), "model.pt")        weights alone, for anything else
"""

from weft.runtime.saves.exporting import export
from weft.runtime.saves.folders import clean, folder_of, newest, prune

__all__ = ["clean", "export", "folder_of", "newest", "prune"]
