"""Local steps of fully connected networks on a GPU, by Triton kernels that never write a gradient."""
