"""The turbo loop: Module A and Module B on a network in training, from data to a compressed network."""

from bayesprune.turbo.compression import Compression, compress
from bayesprune.turbo.compressor import Compressor, Size, Update, apply_masks
from bayesprune.turbo.loop import CollapsedError, DivergedError, Interrupted, MessageRecorder, Recorder
from bayesprune.turbo.plain_settings import SettingsError
from bayesprune.turbo.recording import FolderRecorder
from bayesprune.turbo.settings import PRESETS, Settings

__all__ = [
    "PRESETS",
    "CollapsedError",
    "Compression",
    "Compressor",
    "DivergedError",
    "FolderRecorder",
    "Interrupted",
    "MessageRecorder",
    "Recorder",
    "Settings",
    "SettingsError",
    "Size",
    "Update",
    "apply_masks",
    "compress",
]
