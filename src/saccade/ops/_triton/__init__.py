"""What the Triton kernels of all families share: launches, device functions and tile sizes."""
