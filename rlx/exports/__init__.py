"""A policy that leaves rlx: one folder with its weights, what it takes and gives, a card, an example, an ONNX file."""
