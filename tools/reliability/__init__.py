"""Attempts to break what the documents promise; each keeps its figure below results/reliability.

cd tools && python -m reliability.mutations --out ../results/reliability/mutations.json
"""
