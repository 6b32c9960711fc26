"""Data sets by name, kept on the device that computes, and batches of them.

    data = load("fashion-mnist", validation=0.1, seed=0, device="cuda")
    for x, y in Batches(data.train, 128, generator):
        ...

Needs torch and numpy only; `digits` also scikit-learn and `fetch` also pooch, both imported when used.
"""

from bayesprune.data.augmentation import FlipAndCrop
from bayesprune.data.batching import Batches
from bayesprune.data.dataset import DataSet, Split, channel_statistics
from bayesprune.data.download import fetch
from bayesprune.data.errors import DataError
from bayesprune.data.folders import find_source, locate, missing_files, search_folders, user_cache_folder
from bayesprune.data.loading import Reading, load, read
from bayesprune.data.registry import DATA_SETS, PHOTOGRAPHS, file_spec
from bayesprune.data.spec import FileSpec

__all__ = [
    "DATA_SETS",
    "PHOTOGRAPHS",
    "Batches",
    "DataError",
    "DataSet",
    "FileSpec",
    "FlipAndCrop",
    "Reading",
    "Split",
    "channel_statistics",
    "fetch",
    "file_spec",
    "find_source",
    "load",
    "locate",
    "missing_files",
    "read",
    "search_folders",
    "user_cache_folder",
]
