"""How numbers, dates, sums and abbreviations are read aloud, a module for each language."""
