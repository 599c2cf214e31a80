"""Export models as bundles of ONNX graphs, tokens, golden clips and checksums for `transcribe` and sherpa-onnx."""
