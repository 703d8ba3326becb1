"""Triton kernels for the two convolutions that AMD's libraries serve badly, and their dispatch.

Importing this package needs neither torch nor triton; its modules do:

* ``patch_embed``: the patch embedding of Qwen2-VL style vision towers (a
  Conv3d whose kernel equals its stride).
* ``dilated_block``: DocLayout-YOLO's block of three dilated convolutions with one shared weight.
* ``doclayout``: puts ``dilated_block`` into a loaded YOLOv10 model.
* ``dispatch``: which implementation runs for a shape on a card; ``configs``: where that is written.
* ``aot``: compiles the kernels for cards that are not here and reads the result.
"""
