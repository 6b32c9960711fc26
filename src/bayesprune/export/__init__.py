"""Write a network for other programs, and prove that the file computes the same before it gets its name.

    to_onnx(network, example, Path("network.onnx"))
    to_torch_export(network, example, Path("network.pt2"))
    to_safetensors(network, Path("network.safetensors"))
    to_clusters(network, example, Path("network.clusters.safetensors"))

The batch size stays free in all of them.
"""

from bayesprune.export.clusters_file import to_clusters
from bayesprune.export.onnx_file import to_onnx
from bayesprune.export.report import ExportError, ExportReport
from bayesprune.export.safetensors_file import to_safetensors
from bayesprune.export.torch_file import to_torch_export

__all__ = ["ExportError", "ExportReport", "to_clusters", "to_onnx", "to_safetensors", "to_torch_export"]
