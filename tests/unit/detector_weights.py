"""Writes random.pt, a checkpoint of DocLayout-YOLO with random weights, into the working folder."""

from pathlib import Path

from detector_try import save_random_weights

from doclayout import declare_torchvision_operators
from pdfquarry.engine import yolo

if __name__ == "__main__":
    declare_torchvision_operators()
    yolo._imported()
    save_random_weights(Path("random.pt"))
