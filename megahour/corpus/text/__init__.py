"""Text as it is spoken: normalisation in six languages, markup, speaker labels, language, edit distance."""
