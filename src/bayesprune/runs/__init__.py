"""What a run leaves on disk, and what it shows while it works: killed at any moment, it goes on from there."""

from bayesprune.runs.display import Display
from bayesprune.runs.errors import DamagedCheckpointError, RunError, RunWarning
from bayesprune.runs.folder import RunFolder, load_newest, read_config, read_history, read_summary
from bayesprune.runs.interrupt import Interrupts
from bayesprune.runs.messages import LayerMessages, Messages, read_messages
from bayesprune.runs.names import default_name, new_folder, run_folder

__all__ = [
    "DamagedCheckpointError",
    "Display",
    "Interrupts",
    "LayerMessages",
    "Messages",
    "RunError",
    "RunFolder",
    "RunWarning",
    "default_name",
    "load_newest",
    "new_folder",
    "read_config",
    "read_history",
    "read_messages",
    "read_summary",
    "run_folder",
]
