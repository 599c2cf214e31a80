"""How numbers, dates, amounts of money and abbreviations are read aloud, with one module per language."""
