"""Types, contracts and arithmetic of kvfw. Imports neither transformers nor the command line."""
