"""The mathematics behind codecs: quantisers, rotations and entropy coders."""
