"""Triton kernels for convolutions that MIOpen has no kernel for, their dispatch, and the patches that apply them."""
