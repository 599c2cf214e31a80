"""Convert text to its spoken form: normalisation in six languages, markup, speaker labels, language, edit distance."""
