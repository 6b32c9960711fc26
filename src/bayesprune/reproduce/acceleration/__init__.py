"""How much faster pruned networks run (paper Fig. 9): every kept network of a row beside the dense one.

kept = kept_networks(RowFiles(Path("results/table2"), "lenet5"), CHOICES, seed=0)
entry = acceleration(ROWS["lenet5"], kept, torch.device("cpu"), runtimes=("eager", "native"))
write_entry(entry, Path("results/acceleration"))
merge_entries(Path("results/acceleration"))
"""

from bayesprune.reproduce.acceleration.entries import (
    entry_path,
    entry_standing,
    merge_entries,
    parts_folder,
    place_name,
    read_entries,
    with_earlier,
    write_entry,
)
from bayesprune.reproduce.acceleration.kept import CHOICES, Kept, KeptNetwork, kept_networks
from bayesprune.reproduce.acceleration.markdown import times, way_of
from bayesprune.reproduce.acceleration.measuring import BATCHES, FEWEST_PASSES, SECONDS, acceleration
from bayesprune.reproduce.acceleration.parts import remove_parts
from bayesprune.reproduce.acceleration.roofline import Machine, NetworkWork, bandwidth, peak_flops, work_of

__all__ = [
    "BATCHES",
    "CHOICES",
    "FEWEST_PASSES",
    "SECONDS",
    "Kept",
    "KeptNetwork",
    "Machine",
    "NetworkWork",
    "acceleration",
    "bandwidth",
    "entry_path",
    "entry_standing",
    "kept_networks",
    "merge_entries",
    "parts_folder",
    "peak_flops",
    "place_name",
    "read_entries",
    "remove_parts",
    "times",
    "way_of",
    "with_earlier",
    "work_of",
    "write_entry",
]
