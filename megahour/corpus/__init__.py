"""From the outside world to checked recordings, and out again; a folder for each part of the way."""
