"""Train neural networks in less memory than they need.

``scrimp.plan`` plans any graph of costs and sizes under a byte budget; ``scrimp.torch`` plans and runs
PyTorch training steps. Importing this package imports neither PyTorch nor NumPy.
"""

from scrimp._native import __version__
from scrimp.errors import (
    BadOption,
    BadProblem,
    Infeasible,
    InvalidPlan,
    Mismatch,
    ScrimpError,
    Unsupported,
)
from scrimp.planning import Placement, Plan, Progress, check, methods, place, plan, sweep
from scrimp.problem import Problem

__all__ = [
    "BadOption",
    "BadProblem",
    "Infeasible",
    "InvalidPlan",
    "Mismatch",
    "Placement",
    "Plan",
    "Problem",
    "Progress",
    "ScrimpError",
    "Unsupported",
    "__version__",
    "check",
    "methods",
    "place",
    "plan",
    "sweep",
]
