"""An independent float64 oracle and seeded data, for the tests and `python -m nvfp4kern`.

Nothing here imports the rest of nvfp4kern, and nothing but NumPy is needed (torch where its tensors
are asked for).
"""
