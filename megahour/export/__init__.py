"""Models out: bundles of ONNX graphs, tokens, golden clips and checksums that `transcribe` and sherpa-onnx play."""
