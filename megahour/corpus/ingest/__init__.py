"""From files, tables and buckets to checked recordings with a licence."""
