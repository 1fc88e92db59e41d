"""Readers: which of the slots set aside a decoding step reads back. One file each."""
