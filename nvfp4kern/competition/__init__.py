"""Drop-in `custom_kernel(data)` functions for the GPU MODE NVFP4 problems."""
