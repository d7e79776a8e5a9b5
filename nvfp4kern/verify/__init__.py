"""An independent float64 oracle and seeded data, for the tests and `python -m nvfp4kern`.

Nothing here imports the rest of nvfp4kern. It needs NumPy alone, and torch where its tensors are
asked for.
"""
