"""Flower as the transport (pip install 'fedcom[flower]'): apps for a job, and compression for other apps."""
