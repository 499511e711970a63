"""``stampede export``: the best epoch of a run as one graph, for ONNX runtimes or for ``torch.export``."""

from stampede.workflows.export.run import Exported, ExportFormat, run_export

__all__ = ["ExportFormat", "Exported", "run_export"]
