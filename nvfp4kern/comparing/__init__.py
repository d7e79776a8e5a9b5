"""How far a quantised model is from the one it was made of: `python -m nvfp4kern compare`.

Needs torch; folders need transformers, too.
"""

from .measures import Comparison, LayerErrors
from .models import compare_models

__all__ = ["Comparison", "LayerErrors", "compare_models"]
