"""Readers: which of the offloaded slots a decoding step reads back. One file each."""
