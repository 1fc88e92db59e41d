"""``kvfw new``: writes plugin packages. Does not import torch."""
