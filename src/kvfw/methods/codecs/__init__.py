"""Codecs: store kept slots in fewer bytes. One file each."""
