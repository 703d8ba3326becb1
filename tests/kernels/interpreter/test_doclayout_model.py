"""The real network: patching keeps its boxes. ``test_interpreter.py`` runs it where doclayout-yolo can be imported."""

import pytest
import torch

from doclayout import declare_torchvision_operators
from pdfquarry_kernels.doclayout import patch_doclayout

declare_torchvision_operators()
tasks = pytest.importorskip("doclayout_yolo.nn.tasks", exc_type=ImportError)


def boxes(outputs: object) -> torch.Tensor:
    while not isinstance(outputs, torch.Tensor):
        outputs = outputs["one2one"] if isinstance(outputs, dict) else outputs[0]  # type: ignore[index]
    return outputs


@pytest.mark.slow
def test_the_patched_network_finds_the_same_boxes() -> None:
    network = tasks.YOLOv10DetectionModel("yolov10m-doclayout.yaml", nc=10, verbose=False).train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
    network(torch.rand(2, 3, 128, 128))  # statistics: else activations die out on the way
    x = torch.rand(1, 3, 64, 32)
    expected = boxes(network.eval()(x))
    assert patch_doclayout(network) == 8
    for name in ("triton", "phase_split", "unfold_gemm"):
        patch_doclayout(network, name)
        torch.testing.assert_close(boxes(network(x)), expected, rtol=1e-3, atol=2e-2)
