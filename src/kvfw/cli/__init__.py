"""The command line. Modules here import torch and transformers only inside the commands that need them."""
